"""The two-column summary of one answer."""

from __future__ import annotations

from ninfer_jax.engine.request import EngineCounters, Finished
from ninfer_jax.server.request_log import duration


def summary(
    finished: Finished, counters: EngineCounters, output_ids: list[int] | None = None
) -> str:
    """Lines `name  value`; with `output_ids`, the ids too."""
    usage, timing, drafting = finished.usage, finished.timing, finished.speculation
    first = "-" if timing.first_token is None else duration(timing.first_token)
    rows = [
        ("finish", finished.reason.value.replace("_", " ")),
        ("prompt tokens", str(usage.prompt_tokens)),
        ("reused tokens", str(usage.cached_tokens)),
        ("generated tokens", f"{usage.completion_tokens} (reasoning {usage.reasoning_tokens})"),
        ("prefill", _rate(usage.prompt_tokens - usage.cached_tokens, timing.prefill)),
        ("decode", _rate(usage.completion_tokens - 1, timing.decode)),
        ("time to first token", first),
        ("total time", duration(timing.total)),
        ("KV pool", f"{counters.pages_total} pages"),
        ("state slots", str(counters.slots_total)),
    ]
    if drafting.drafted_tokens:
        share = 100 * drafting.accepted_tokens / drafting.drafted_tokens
        positions = " ".join(map(str, drafting.accepted_per_position))
        rows += [
            (
                f"{drafting.backend} accepted",
                f"{drafting.accepted_tokens}/{drafting.drafted_tokens} ({share:.1f}%)",
            ),
            ("accepted by position", positions),
            ("rounds / fallback steps", f"{drafting.rounds} / {drafting.fallback_steps}"),
        ]
    if output_ids is not None:
        rows.append(("output ids", " ".join(map(str, output_ids))))
    return "\n".join(f"{name:<24}{value}" for name, value in rows)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tok/s" if tokens > 0 and seconds > 0 else "-"
