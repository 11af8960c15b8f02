"""Counting acceptance: the worked example of `docs/serving.md`, and what is not counted."""

from __future__ import annotations

from ninfer_jax.engine.draft_counts import DraftCounts
from ninfer_jax.engine.request import Finished, FinishReason, Speculation, Timing, Usage
from ninfer_jax.engine.units import Drafting, Round
from ninfer_jax.server.request_log import done_line

K8 = Drafting("dflash2", 8, 0)


def round_of(accepted: int, drafted: int = 8) -> Round:
    return Round(tuple(range(accepted + 1)), drafted, accepted)


def test_the_worked_example():
    """Three rounds that accept 8, 2 and 0, after one token from prefill."""
    counts = DraftCounts()
    counts.add([round_of(8)], K8)
    counts.add([round_of(2), round_of(0)], K8)
    total = counts.total()
    assert (total.rounds, total.drafted_tokens, total.accepted_tokens) == (3, 24, 10)
    assert total.accepted_per_position == (2, 2, 1, 1, 1, 1, 1, 1)
    assert f"{1 + total.accepted_tokens / total.rounds:.2f}" == "4.33"
    assert 1 + total.rounds + total.accepted_tokens == 14
    finished = Finished(
        FinishReason.STOP_TOKEN,
        Usage(1200, 14, 0, 1024, "checkpoint"),
        Timing(prefill=0.08, decode=0.09, first_token=0.09, total=0.19),
        total,
    )
    line = done_line(
        "openai-chat", 7, finished, prepare_seconds=0.0, tool_calls=0, has_content=True
    )
    assert line == (
        "req#7 done | openai-chat | stop token | prompt 1200 | output 14 | reasoning 0 | "
        "cache 1024 (85.3%, checkpoint) | TTFT 90ms | total 190ms | prefill 2200.0 tok/s | "
        "decode 144.4 tok/s | dflash2 accepted 10/24 (41.7%)"
    )


def test_ordinary_steps_are_fallbacks_and_nothing_else():
    counts = DraftCounts()
    counts.add([round_of(0, drafted=0), round_of(1)], K8)
    total = counts.total()
    assert (total.rounds, total.fallback_steps, total.drafted_tokens) == (1, 1, 8)


def test_without_a_drafter_everything_is_zero():
    counts = DraftCounts()
    counts.add([round_of(0, drafted=0)], Drafting())
    assert counts.total() == Speculation()
