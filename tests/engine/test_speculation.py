"""The speculative loop with small random models: same text, exact commits, lanes, borders."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.engine.drafters import wants_draft
from ninfer_jax.engine.request import SamplingParams
from ninfer_jax.engine.units import Pending
from tests.engine.drafting import (
    PROMPTS,
    WHOLE,
    Lane,
    decode,
    drafted,
    lanes,
    plain,
    prompt,
    random_drafter,
    reference,
    replay,
    run,
    started,
)
from tests.model.building import ADDRESSABLE

COUNT = 40
DRAFTERS = [("mtp", 1), ("mtp", 4), ("dflash2", 2), ("dflash2", 7)]
SAMPLED = SamplingParams(temperature=0.9, top_k=8, top_p=0.9, presence_penalty=0.5, seed=11)


@pytest.mark.parametrize(("name", "draft_tokens"), DRAFTERS)
def test_greedy_text_is_that_of_plain_decoding(name, draft_tokens):
    programs = drafted(name, draft_tokens)
    group = started(programs, lanes())
    run(programs, group, COUNT)
    for lane in group:
        assert lane.tokens[:COUNT] == reference()[lane.slot][:COUNT], lane.slot
        accepted = sum(one.accepted for one in lane.rounds)
        offered = sum(one.drafted for one in lane.rounds)
        print(lane.slot, accepted, offered)
        assert offered and accepted <= 0.1 * offered, "an untrained drafter is not believed"


@pytest.mark.parametrize("draft_tokens", [1, 4, pytest.param(7, marks=pytest.mark.slow)])
def test_a_drafter_that_knows_the_text_is_accepted_in_every_round(draft_tokens):
    programs = replay(draft_tokens)
    group = started(programs, lanes())
    run(programs, group, COUNT)
    for lane in group:
        assert lane.tokens[:COUNT] == reference()[lane.slot][:COUNT]
        assert all(one.accepted == one.drafted for one in lane.rounds)
        drafting = [one for one in lane.rounds if one.drafted]
        assert len(drafting) >= (COUNT - 1) // (draft_tokens + 1) - 1


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SAMPLED], ids=str)
@pytest.mark.parametrize(("name", "draft_tokens"), WHOLE)
def test_lanes_together_are_lanes_alone(name, draft_tokens, sampling):
    """In mixed states: they are admitted at different times, and cut in different places."""
    programs = drafted(name, draft_tokens)
    alone = {}
    for slot in PROMPTS:
        (lane,) = started(programs, lanes([slot], sampling=sampling))
        run(programs, [lane], COUNT)
        alone[slot] = lane.tokens[:COUNT]
    first, second, third, fourth = lanes(sampling=sampling)
    started(programs, [first, second])
    decode(programs, [first, second], 3)
    started(programs, [third])
    decode(programs, [third, first], 2)
    started(programs, [fourth])
    group = [fourth, first, third, second]
    run(programs, group, COUNT, rounds=5)
    for lane in group:
        assert lane.tokens[:COUNT] == alone[lane.slot], lane.slot


def test_ordinary_steps_draw_what_plain_decoding_draws():
    """With fewer than K + 1 tokens left nothing is drafted, and the numbers are the same."""
    programs = drafted("dflash2", 7)
    one = started(plain(), lanes(sampling=SAMPLED))
    other = started(programs, lanes(sampling=SAMPLED))
    for _ in range(3):
        decode(plain(), one, 2, 7)
        decode(programs, other, 2, 7)
    for lane, expected in zip(other, one, strict=True):
        assert lane.tokens == expected.tokens
        assert all(item.drafted == 0 for item in lane.rounds)


@pytest.mark.parametrize("limit", [1, 4, 5, 8, 12])
def test_no_round_passes_the_limit(limit):
    programs = replay(4)
    group = started(programs, lanes())
    produced = 0
    while produced < limit:
        before = len(group[0].tokens)
        decode(programs, group, 8, limit - produced)
        produced += len(group[0].tokens) - before
    assert produced == limit
    shape = [one.drafted for one in group[0].rounds]
    assert shape == [4] * (limit // 5) + [0] * (limit % 5)


def test_the_end_of_the_context_stops_drafting():
    state = jnp.array([True, True, True, False]), jnp.full(4, 100)
    position = jnp.array([248, 249, 100, 100])
    drafter, _ = random_drafter("mtp", 4)
    assert wants_draft(drafter, *state, position, 256).tolist() == [True, False, True, False]
    drafter, _ = random_drafter("dflash2", 7)
    assert wants_draft(drafter, *state, position, 256).tolist() == [True, False, True, False]


@pytest.mark.parametrize("column", range(5))
def test_a_stop_token_ends_the_dispatch_inside_its_block(column):
    programs, slot = replay(4), 2
    text = reference()[slot]
    at = 6 + column
    stop = text[at]
    first = text.index(stop)
    (lane,) = started(programs, lanes([slot], stop=frozenset({stop})))
    if first == 0:
        pytest.skip("the prompt's own first token is the stop token")
    decode(programs, [lane], 8)
    assert stop in lane.rounds[-1].tokens
    assert all(stop not in one.tokens for one in lane.rounds[:-1])
    assert lane.tokens[: first + 1] == text[: first + 1]


@pytest.mark.parametrize(("name", "draft_tokens"), [*WHOLE, ("replay", 4)])
@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_a_second_turn_after_a_cut_is_a_cold_run(name, draft_tokens, kept):
    """Commit exactly N: the host keeps some outputs of the last round, and goes on with other
    tokens behind them; a cold run of the same tokens has the same continuation."""
    programs = replay(draft_tokens) if name == "replay" else drafted(name, draft_tokens)
    (lane,) = started(programs, lanes([0]))
    decode(programs, [lane], 3)
    kept = min(kept, len(lane.rounds[-1].tokens))
    lane.keep(kept)
    history = np.concatenate([lane.prompt, lane.tokens])[: lane.frontier]
    turn = np.concatenate([history, prompt(77, 20)])
    warm = Lane(0, turn, pending=lane.pending)
    warm.prefill(programs, start=len(history))
    cold = Lane(3, turn)
    cold.prefill(programs, [len(history), 20])
    run(programs, [warm], 20)
    run(programs, [cold], 20)
    assert warm.tokens[:20] == cold.tokens[:20]
    if name == "replay":
        return
    # Acceptance too: what the drafter remembers is the same.
    assert [one.accepted for one in warm.rounds] == [one.accepted for one in cold.rounds]


@pytest.mark.parametrize(("name", "draft_tokens"), WHOLE)
def test_prompts_in_any_pieces(name, draft_tokens):
    """Chunks hand the drafter's waiting column on."""
    programs = drafted(name, draft_tokens)
    whole, pieces = Lane(0, prompt(5, 64)), Lane(1, prompt(5, 64))
    whole.prefill(programs)
    pieces.prefill(programs, [1, 2, 30, 31])
    run(programs, [whole], 20)
    run(programs, [pieces], 20)
    assert whole.tokens == pieces.tokens


@pytest.mark.parametrize(("name", "draft_tokens"), WHOLE)
def test_poison_in_every_unused_row_changes_nothing(name, draft_tokens):
    programs = drafted(name, draft_tokens)
    clean = started(programs, lanes([1, 2]))
    run(programs, clean, 20)
    group = lanes([1, 2])
    programs._state = jax.tree.map(
        lambda leaf: (
            jnp.full_like(leaf, jnp.nan)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else jnp.full_like(leaf, 3)
        ),
        programs._state,
    )
    started(programs, group)
    run(programs, group, 20)
    for lane, expected in zip(group, clean, strict=True):
        assert lane.tokens == expected.tokens


@pytest.mark.parametrize(("name", "draft_tokens"), WHOLE)
def test_nothing_compiles_whatever_is_mixed(name, draft_tokens):
    programs = drafted(name, draft_tokens)
    group = started(programs, lanes([0, 1])) + started(programs, lanes([2], sampling=SAMPLED))
    before = programs.recompilations
    for count, rounds, limit in ((1, 1, 100), (3, 8, 3), (2, 5, 20), (3, 2, 9)):
        decode(programs, group[:count], rounds, limit)
    started(programs, lanes([3], sampling=SAMPLED))
    assert programs.recompilations == before


def test_pending_columns_are_told_by_the_host():
    """What the tests above rely on: a lane carries its own pending columns."""
    (lane,) = started(drafted("mtp", 4), lanes([0]))
    assert lane.pending == Pending(fold=0, absorb=1)
    decode(drafted("mtp", 4), [lane], 1)
    assert lane.pending == Pending(*[len(lane.rounds[-1].tokens)] * 2)
    assert all(token < ADDRESSABLE for token in lane.tokens)
