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
from tests.barriers import keeps_barriers
from tests.model.building import ADDRESSABLE, F32, Driver, small_model
from tests.model.test_poison import POISON_ID, poisoned_model

SLOTS, OUTSIDE = 4, 4
TABLES = np.array([[7, 0], [6, 1], [5, 2], [4, 3]])
PROMPTS = (9, 20)
WIDTH, MOST = 5, 16
BF16 = jnp.dtype(jnp.bfloat16)
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
def prefilled(dtype=F32) -> DecoderState:
    driver = Driver(small_model(dtype=dtype), 8, SLOTS)
    for slot, length in enumerate(PROMPTS):
        tokens = np.random.RandomState(slot).randint(0, ADDRESSABLE, length)
        driver.feed(tokens, slot, TABLES[slot], [(length, 32)])
    return driver.state


@functools.cache
def tokens_of(slot: int) -> np.ndarray:
    return np.random.RandomState(100 + slot).randint(0, ADDRESSABLE, MOST)


def empty_log(width: int, dtype=F32):
    spec = records_spec(small_model().config, SLOTS, width, dtype)
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, np.nan, leaf.dtype), spec)


def verify(width, live=None, state=None, ids=None, start=PROMPTS, slots=(0, 1), model=None):
    """Both lanes' next `width` tokens in one verify call: logits, state, log."""
    model = model or small_model()
    ids = np.stack([tokens_of(slot)[:width] for slot in range(2)]) if ids is None else ids
    rows = Rows(
        slots=jnp.asarray(slots),
        block_table=jnp.asarray(TABLES[:2]),
        start=jnp.asarray(start),
        length=jnp.asarray(live or (width, width)),
        fresh=jnp.zeros(2, bool),
    )
    return verify_call(
        model.graph,
        Driver(model, 8, SLOTS).codec,
        model.weights,
        prefilled(model.dtype) if state is None else state,
        empty_log(width, model.dtype),
        jnp.asarray(ids, jnp.int32),
        rows,
    )


@functools.cache
def single_steps(dtype=F32) -> tuple[list[DecoderState], list[np.ndarray]]:
    """States after 0 .. 16 tokens of both lanes, and logits of each call of one token."""
    driver = Driver(small_model(dtype=dtype), 8, SLOTS, state=prefilled(dtype))
    states, logits = [driver.state], []
    for step in range(MOST):
        ids = np.array([[tokens_of(slot)[step]] for slot in range(2)])
        start = [length + step for length in PROMPTS]
        out = driver.call(ids, [0, 1], TABLES[:2], start, [1, 1], [False, False])
        states.append(driver.state)
        logits.append(out[:, 0])
    return states, logits


def recurrent_layers(state: DecoderState) -> list[DeltaState]:
    return [layer for layer in state.layers if isinstance(layer, DeltaState)]


def assert_same_bits(first, second) -> None:
    """Of two trees of arrays; `view` sees what `==` does not: NaN and the sign of zero."""
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        one, other = np.ascontiguousarray(one), np.ascontiguousarray(other)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def assert_folded_like(folded, stepped) -> None:
    """The same bits, where the compiler lets us ask for them."""
    if keeps_barriers():
        assert_same_bits(folded, stepped)
        return
    for one, other in zip(jax.tree.leaves(folded), jax.tree.leaves(stepped), strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def of_slot(state: DecoderState, slot: int):
    return jax.tree.map(lambda leaf: leaf[slot], recurrent_layers(state))


@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (1, F32),
        (WIDTH, F32),
        (16, F32),
        (WIDTH, BF16),
        pytest.param(2, F32, marks=pytest.mark.slow),
        pytest.param(8, F32, marks=pytest.mark.slow),
    ],
)
def test_verify_then_fold_is_single_steps_for_every_count(width, dtype):
    """Also of 16-bit activations: what is recorded is what verify went on with."""
    logits, state, log = verify(width, model=small_model(dtype=dtype))
    single, rows = single_steps(dtype)
    for count in range(width + 1):
        counts = (count, width - count)
        folded = fold_call(state, log, jnp.arange(2), jnp.array(counts))
        for slot in range(2):
            assert_folded_like(of_slot(folded, slot), of_slot(single[counts[slot]], slot))
        for slot in (2, 3):
            assert_same_bits(of_slot(folded, slot), of_slot(prefilled(dtype), slot))
    for column in range(width):
        difference = np.abs(np.asarray(logits)[:, column] - rows[column]).max()
        assert difference <= 1e-5, difference


def test_verify_leaves_committed_state_alone():
    _, state, _ = verify(WIDTH)
    assert_same_bits(recurrent_layers(state), recurrent_layers(prefilled()))


def test_many_rounds_with_rejected_tokens_between():
    """State and logits after rounds of different N; the tokens behind N are others each time."""
    state, done, rng = prefilled(), np.zeros(2, int), np.random.RandomState(1)
    single, rows = single_steps()
    for counts in ((3, 1), (0, 5), (5, 0), (1, 4), (2, 1)):
        ids = rng.randint(0, ADDRESSABLE, (2, WIDTH))
        for slot in range(2):
            ids[slot, : counts[slot]] = tokens_of(slot)[done[slot] :][: counts[slot]]
        logits, state, log = verify(WIDTH, state=state, ids=ids, start=np.array(PROMPTS) + done)
        for slot in range(2):
            for column in range(counts[slot]):
                expected = rows[done[slot] + column][slot]
                np.testing.assert_allclose(logits[slot, column], expected, atol=1e-5)
        state = fold_call(state, log, jnp.arange(2), jnp.array(counts))
        done += counts
        for slot in range(2):
            assert_folded_like(of_slot(state, slot), of_slot(single[done[slot]], slot))


def test_fewer_live_columns_have_the_same_bits():
    """P + 1 < W: the rest of the call is inert."""
    logits, _, log = verify(WIDTH)
    fewer, state, short = verify(WIDTH, (2, 4))
    for slot, live in ((0, 2), (1, 4)):
        np.testing.assert_array_equal(fewer[slot, :live], logits[slot, :live])
    for count in ((2, 4), (1, 3), (0, 2)):
        args = jnp.arange(2), jnp.array(count)
        assert_same_bits(fold_call(state, short, *args), fold_call(state, log, *args))


def test_poison_in_inert_columns_changes_no_bit():
    """Their ids have embedding rows of NaN."""
    live, ids = (2, 4), np.full((2, WIDTH), POISON_ID)
    for slot in range(2):
        ids[slot, : live[slot]] = tokens_of(slot)[: live[slot]]
    clean, state, log = verify(WIDTH, live)
    dirty, poisoned, records = verify(WIDTH, live, ids=ids, model=poisoned_model())
    for slot in range(2):
        np.testing.assert_array_equal(dirty[slot, : live[slot]], clean[slot, : live[slot]])
    assert_same_bits(poisoned, state)
    args = jnp.arange(2), jnp.array(live)
    assert_same_bits(fold_call(poisoned, records, *args), fold_call(state, log, *args))


def test_inactive_rows_of_verify_write_nothing():
    """A slot out of range: neither records nor pages nor state."""
    logits, _, log = verify(WIDTH)
    alone, other, records = verify(WIDTH, (WIDTH, 0), slots=(0, OUTSIDE))
    np.testing.assert_array_equal(alone[0], logits[0])
    assert_same_bits(
        jax.tree.map(lambda leaf: leaf[0], records), jax.tree.map(lambda leaf: leaf[0], log)
    )
    for leaf in jax.tree.leaves(records):
        assert np.isnan(leaf[1:]).all()
    for before, after in zip(prefilled().layers, other.layers, strict=True):
        if isinstance(before, DeltaState):
            assert_same_bits(after, before)
            continue
        for one, two in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            changed = (np.asarray(one) != np.asarray(two)).any(axis=(1, 3))
            expected = np.zeros_like(changed)
            expected[TABLES[0, 0], PROMPTS[0] : PROMPTS[0] + WIDTH] = True
            np.testing.assert_array_equal(changed, expected)


def test_records_behind_the_count_are_never_read():
    _, state, log = verify(WIDTH)
    for count in range(WIDTH):
        poisoned = jax.tree.map(lambda leaf, n=count: leaf.at[:, n:].set(np.nan), log)
        args = jnp.arange(2), jnp.array([count, 0])
        assert_same_bits(fold_call(state, poisoned, *args), fold_call(state, log, *args))


def test_nothing_folded_is_no_bit_changed():
    """Whatever the slot holds: NaN with a payload, negative zero, subnormals."""
    _, state, log = verify(WIDTH)
    odd = np.array([0x7FC01234, 0x80000000, 0x00000001, 0xFF800000], np.uint32)

    def strange(leaf):
        bits = np.asarray(leaf).copy()
        flat = np.resize(odd, bits[1].size).view(np.float32)
        bits[1] = flat.reshape(bits[1].shape)
        return jnp.asarray(bits)

    layers = [
        jax.tree.map(strange, layer) if isinstance(layer, DeltaState) else layer
        for layer in state.layers
    ]
    state = DecoderState(tuple(layers))
    log = jax.tree.map(lambda leaf: leaf.at[1].set(np.nan), log)
    assert_same_bits(fold_call(state, log, jnp.arange(2), jnp.array([0, 0])), state)
    # Also beside a row that folds, in whose loop this row takes part.
    folded = fold_call(state, log, jnp.arange(2), jnp.array([WIDTH, 0]))
    assert_same_bits(of_slot(folded, 1), of_slot(state, 1))
    assert_folded_like(of_slot(folded, 0), of_slot(single_steps()[0][WIDTH], 0))


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
    alone = fold_call(state, log, jnp.array([0, OUTSIDE]), jnp.array([4, 5]))
    alone = fold_call(alone, log, jnp.array([OUTSIDE + 9, 1]), jnp.array([5, 1]))
    assert_same_bits(together, alone)
    outside = fold_call(state, log, jnp.array([OUTSIDE, OUTSIDE]), jnp.array([5, 5]))
    assert_same_bits(outside, state)
