"""Verify then fold N is the same as running N tokens one by one, bit for bit."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.model.compilation import compiler_options
from ninfer_jax.model.decoder import merge_decoder
from ninfer_jax.model.replay import fold, records_spec, verified, verify_memories
from ninfer_jax.model.state import DecoderState, DeltaState, Rows
from tests.model.building import ADDRESSABLE, Driver, small_model

SLOTS = 4
TABLES = np.array([[7, 0], [6, 1], [5, 2], [4, 3]])
PROMPTS = (9, 20)
WIDTH = 5
OPTIONS = compiler_options("cpu")


@functools.partial(jax.jit, static_argnames=("graph", "codec"), compiler_options=OPTIONS)
def verify_call(graph, codec, weights, state, log, ids, rows):
    decoder = merge_decoder(graph, weights)
    hidden, advanced, _ = decoder(
        ids, rows.positions(ids.shape[1]), verify_memories(state, rows, codec)
    )
    state, log = verified(state, log, advanced, rows)
    return decoder.logits(hidden), state, log


fold_call = jax.jit(fold, compiler_options=OPTIONS)


@functools.cache
def prefilled() -> DecoderState:
    driver = Driver(small_model(), 8, SLOTS)
    for slot, length in enumerate(PROMPTS):
        tokens = np.random.RandomState(slot).randint(0, ADDRESSABLE, length)
        driver.feed(tokens, slot, TABLES[slot], [(length, 32)])
    return driver.state


def tokens_of(slot: int, count: int) -> np.ndarray:
    return np.random.RandomState(100 + slot).randint(0, ADDRESSABLE, count)


def empty_log(width: int):
    spec = records_spec(small_model().config, SLOTS, width, jnp.float32)
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, np.nan, leaf.dtype), spec)


def verify(width: int, live: tuple[int, int] | None = None):
    """Both lanes' next `width` tokens in one verify call."""
    model, driver = small_model(), Driver(small_model(), 8, SLOTS)
    live = live or (width, width)
    ids = np.stack([tokens_of(slot, width) for slot in range(2)])
    rows = Rows(
        slots=jnp.arange(2),
        block_table=jnp.asarray(TABLES[:2]),
        start=jnp.asarray(PROMPTS),
        length=jnp.asarray(live),
        fresh=jnp.zeros(2, bool),
    )
    return verify_call(
        model.graph,
        driver.codec,
        model.weights,
        prefilled(),
        empty_log(width),
        jnp.asarray(ids, jnp.int32),
        rows,
    )


def step_by_step(counts: tuple[int, int]) -> tuple[DecoderState, dict[int, list[np.ndarray]]]:
    """The lanes' next tokens one call at a time through the ordinary state."""
    driver = Driver(small_model(), 8, SLOTS, state=prefilled())
    logits: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for step in range(max(counts)):
        live = [int(step < count) for count in counts]
        ids = np.array([[tokens_of(slot, step + 1)[step]] for slot in range(2)])
        start = [PROMPTS[slot] + step for slot in range(2)]
        out = driver.call(ids, [0, 1], TABLES[:2], start, live, [False, False])
        for slot in range(2):
            if live[slot]:
                logits[slot].append(out[slot, 0])
    return driver.state, logits


def recurrent_layers(state: DecoderState) -> list[DeltaState]:
    return [layer for layer in state.layers if isinstance(layer, DeltaState)]


def assert_same_bits(first: DecoderState, second: DecoderState) -> None:
    for one, other in zip(recurrent_layers(first), recurrent_layers(second), strict=True):
        for kept, expected in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(
                np.asarray(kept).view(np.uint32), np.asarray(expected).view(np.uint32)
            )


@pytest.mark.parametrize("width", [2, WIDTH, 8, 16])
def test_verify_then_fold_is_single_steps_for_every_count(width):
    _, state, log = verify(width)
    for count in range(width + 1):
        other = width - count
        folded = fold_call(state, log, jnp.arange(2), jnp.array([count, other]))
        expected, _ = step_by_step((count, other))
        assert_same_bits(folded, expected)


def test_verify_leaves_committed_state_alone_and_agrees_with_single_steps():
    logits, state, _ = verify(WIDTH)
    assert_same_bits(state, prefilled())
    _, single = step_by_step((WIDTH, WIDTH))
    for slot in range(2):
        difference = np.abs(np.asarray(logits[slot]) - np.stack(single[slot])).max()
        print("logits", slot, difference)
        assert difference <= 1e-5


def test_fewer_live_columns_have_the_same_bits():
    logits, _, log = verify(WIDTH)
    fewer, state, short = verify(WIDTH, (2, 0))
    np.testing.assert_array_equal(np.asarray(fewer)[0, :2], np.asarray(logits)[0, :2])
    folded = fold_call(state, short, jnp.arange(2), jnp.array([2, 0]))
    expected = fold_call(state, log, jnp.arange(2), jnp.array([2, 0]))
    assert_same_bits(folded, expected)


def test_records_behind_the_count_are_never_read():
    _, state, log = verify(WIDTH)
    poisoned = jax.tree.map(lambda leaf: leaf.at[:, 3:].set(np.nan), log)
    args = jnp.arange(2), jnp.array([3, 0])
    assert_same_bits(fold_call(state, poisoned, *args), fold_call(state, log, *args))


def test_a_second_fold_is_not_harmless():
    """Exactly once matters: folding again moves the state."""
    _, state, log = verify(WIDTH)
    args = jnp.arange(2), jnp.array([2, 2])
    once = fold_call(state, log, *args)
    twice = fold_call(once, log, *args)
    one, two = recurrent_layers(once)[0], recurrent_layers(twice)[0]
    assert np.abs(np.asarray(one.recurrent - two.recurrent)).max() > 1e-3


def test_rows_together_are_rows_alone_and_inactive_rows_write_nothing():
    _, state, log = verify(WIDTH)
    together = fold_call(state, log, jnp.array([0, 1]), jnp.array([4, 1]))
    alone = fold_call(state, log, jnp.array([0, SLOTS]), jnp.array([4, 5]))
    alone = fold_call(alone, log, jnp.array([SLOTS, 1]), jnp.array([5, 1]))
    assert_same_bits(together, alone)
