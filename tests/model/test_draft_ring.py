"""The drafter's ring: which rows are written, what they hold, and who sees them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.model.draft_ring import DraftRing, append_rows, ring_rows, ring_spec, seen_rows
from ninfer_jax.quantization.kv import CODECS
from tests.engine.drafting import draft_config
from tests.model.building import small_model

SLOTS, OUTSIDE = 3, 3


@functools.cache
def config():
    return draft_config(small_model())


append = functools.partial(jax.jit, static_argnames="codec")(append_rows)


def poisoned(codec=CODECS["f32"]):
    """Rings in which every row is NaN."""
    return jax.tree.map(
        lambda leaf: jnp.full(
            leaf.shape,
            jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 0x7FC0,
            leaf.dtype,
        ),
        ring_spec(config(), SLOTS, codec),
    )


@functools.cache
def columns(count: int = 100) -> np.ndarray:
    """[layers, key or value, row, position, G, E], no two numbers equal."""
    rng, shape = np.random.RandomState(0), (config().num_key_value_heads, config().head_dim)
    return rng.randn(config().num_layers, 2, 2, count, *shape).astype(np.float32)


def appended(rings, slots, start, count, width, codec=CODECS["f32"]):
    """Appends positions start .. start + count - 1 of both rows; NaN behind the count."""
    part = np.full((*columns().shape[:3], width, *columns().shape[4:]), np.nan, np.float32)
    for row in range(2):
        live = slice(start[row], start[row] + count[row])
        part[:, :, row, : count[row]] = columns()[:, :, row, live]
    rows = [(jnp.asarray(key), jnp.asarray(value)) for key, value in part]
    return append(rings, rows, codec, *(jnp.asarray(x) for x in (slots, start, count)))


def assert_same_bits(first, second) -> None:
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def held(rings, slot: int) -> np.ndarray:
    """[layers, 2, R, G, E] of one slot."""
    return np.stack(
        [[np.asarray(x["rows"][slot]) for x in (ring.keys, ring.values)] for ring in rings]
    )


@pytest.mark.parametrize(
    ("pieces", "width"),
    [([100], 128), ([37, 0, 63], 64), ([5] * 20, 8), ([32, 68], 80), ([33, 31, 1, 35], 40)],
)
def test_any_pieces_are_one_by_one(pieces, width):
    """Chunks longer than the window of 32, prefixes of a call, and nothing at all."""

    def in_pieces(pieces, width):
        rings, start = poisoned(), 0
        for count in pieces:
            rings = appended(rings, [1, OUTSIDE], [start, start], [count, count], width)
            start += count
        return rings

    assert_same_bits(in_pieces(pieces, width), in_pieces([1] * 100, 1))


@pytest.mark.parametrize("start", [0, 1, 31, 50])
@pytest.mark.parametrize("count", [0, 1, 5, 31, 32, 33, 50])
def test_only_counted_columns_are_written(start, count):
    """Row `p mod R` holds position p, for the last R of the call; all else keeps its bits."""
    rings = appended(poisoned(), [2, OUTSIDE], [start, 0], [count, 50], 64)
    expected = held(poisoned(), 2)
    window = config().sliding_window
    for position in range(max(start, start + count - window), start + count):
        expected[:, :, position % window] = columns()[:, :, 0, position]
    np.testing.assert_array_equal(held(rings, 2), expected)
    for slot in (0, 1):
        assert np.isnan(held(rings, slot)).all()


class WrittenRows:
    """Stands for a plane and keeps the index of its scatter."""

    def __init__(self):
        self.shape = (SLOTS, config().sliding_window)
        self.index = None

    @property
    def at(self):
        return self

    def __getitem__(self, index):
        self.index = index
        return self

    def set(self, values, mode):
        assert mode == "drop"
        return self


@pytest.mark.parametrize("count", [0, 31, 32, 33, 70, 100])
def test_no_row_is_written_twice_in_a_call(count):
    """The order of a scatter is undefined; on CPU the values alone would not show it."""
    plane, window = WrittenRows(), config().sliding_window
    rings = [DraftRing({"rows": plane}, {"rows": plane})]
    rows = [(jnp.zeros((1, 100, 1, 1)),) * 2]
    append_rows(rings, rows, CODECS["f32"], jnp.array([1]), jnp.array([9]), jnp.array([count]))
    written = np.asarray(plane.index[1][0])
    kept = written[written < window]
    assert len(kept) == len(set(kept.tolist())) == min(count, window)
    assert ((written >= 0) & (written <= window)).all()


def test_rows_together_are_rows_alone():
    together = appended(poisoned(), [2, 0], [7, 40], [20, 3], 32)
    alone = appended(poisoned(), [2, OUTSIDE + 9], [7, 0], [20, 32], 32)
    alone = appended(alone, [OUTSIDE, 0], [0, 40], [32, 3], 32)
    assert_same_bits(together, alone)


def test_nothing_is_no_change():
    rings = appended(poisoned(), [0, 1], [3, 9], [30, 30], 32)
    again = appended(rings, [0, 1], [33, 39], [0, 0], 8)
    assert_same_bits(again, appended(again, [OUTSIDE, 10_000], [0, 0], [8, 8], 8))
    assert_same_bits(rings, again)


@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_one_type_is_written_and_read(name):
    """1.5 comes back as 1.5; a slot out of range reads as zeros."""
    codec, shape = CODECS[name], (1, 1, config().num_key_value_heads, config().head_dim)
    rows = [(jnp.full(shape, 1.5), jnp.full(shape, -0.375))] * config().num_layers
    rings = append(poisoned(codec), rows, codec, jnp.array([1]), jnp.array([33]), jnp.array([1]))
    for key, value in ring_rows(rings, codec, jnp.array([1, OUTSIDE])):
        assert (key[0, 1] == 1.5).all() and (value[0, 1] == -0.375).all()
        assert np.isnan(key[0, 0]).all() and np.isnan(value[0, 2:]).all()
        assert not key[1].any() and not value[1].any()


def test_the_window_rule_for_every_frontier():
    """A row is seen if it holds a position p < frontier with query - p < window."""
    window, width = 5, 4
    frontiers = np.arange(4 * window)
    positions = frontiers[:, None] + np.arange(width)
    found = np.asarray(seen_rows(jnp.asarray(frontiers), jnp.asarray(positions), window))
    expected = np.zeros((len(frontiers), width, window), bool)
    for frontier in frontiers:
        for position in range(frontier):
            if position < frontier - window:
                continue  # overwritten
            for column in range(width):
                near = frontier + column - position < window
                expected[frontier, column, position % window] = near
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("frontier", [2047, 2048, 2049, 5000, 262_143])
def test_the_published_window(frontier):
    """Distance 2,047 is inside, 2,048 is outside; column i of a full ring sees 2047 - i."""
    positions = frontier + np.arange(9)[None]
    seen = np.asarray(seen_rows(jnp.array([frontier]), jnp.asarray(positions), 2048))[0]
    assert seen[0, (frontier - 1) % 2048] and seen[8, (frontier - 1) % 2048]
    for column in range(9):
        inside, outside = frontier + column - 2047, frontier + column - 2048
        if 0 <= inside < frontier:
            assert seen[column, inside % 2048]
        if outside >= frontier - 2048 and outside >= 0:
            assert not seen[column, outside % 2048]
        assert seen[column].sum() == min(frontier, 2047 - column)
