"""Paged attention and page writes against dense float64, over hostile tables and lengths."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.pallas.paged_attention.api import paged_attention, write_pages
from ninfer_jax.pallas.paged_attention.reference import PAGE
from ninfer_jax.quantization.kv import CODECS

GROUPS, HEADS, WIDTH = 2, 6, 32
PAGES = 40
TABLE_WIDTH = 17
"""Not a multiple of the pages of a tile."""


def oracle(query, keys, values, table, start, length) -> np.ndarray:
    """Dense softmax attention of the live columns in float64; zeros elsewhere."""
    batch, _, heads, width = query.shape
    groups = keys.shape[1]
    out = np.zeros(query.shape)
    for row in range(batch):
        end = start[row] + length[row]
        place = [(table[row][at // PAGE], at % PAGE) for at in range(end)]
        key = np.array([keys[page, :, offset] for page, offset in place], np.float64)
        value = np.array([values[page, :, offset] for page, offset in place], np.float64)
        for column in range(length[row]):
            seen = start[row] + column + 1
            for head in range(heads):
                group = head // (heads // groups)
                scores = key[:seen, group] @ query[row, column, head] / np.sqrt(width)
                weights = np.exp(scores - scores.max())
                out[row, column, head] = weights / weights.sum() @ value[:seen, group]
    return out


def tables(kind: str, batch: int, seed: int = 0) -> np.ndarray:
    """Block tables [B, M]; rows may share no page but their order is hostile."""
    if kind == "reversed":
        return np.stack([np.arange(TABLE_WIDTH)[::-1] + 19 * (row % 2) for row in range(batch)])
    if kind == "shuffled":
        random = np.random.RandomState(seed)
        return np.stack([random.permutation(PAGES)[:TABLE_WIDTH] for _ in range(batch)])
    if kind == "shared":
        return np.broadcast_to(np.arange(TABLE_WIDTH) + 3, (batch, TABLE_WIDTH)).copy()
    return np.full((batch, TABLE_WIDTH), 7)  # every entry one page


@functools.cache
def pool(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    shape = (PAGES, GROUPS, PAGE, WIDTH)
    return random.randn(*shape).astype(np.float32), random.randn(*shape).astype(np.float32)


def attend(query, keys, values, table, start, length, codec="f32"):
    encoder = CODECS[codec]
    run = jax.jit(paged_attention, static_argnums=3)
    encoded = [encoder.encode(jnp.asarray(plane)) for plane in (keys, values)]
    arrays = [jnp.asarray(x, jnp.int32) for x in (table, start, length)]
    return np.asarray(run(jnp.asarray(query, jnp.float32), *encoded, encoder, *arrays))


def compare(table, start, length, columns: int, seed: int = 0, tolerance: float = 2e-6):
    query = np.random.RandomState(seed).randn(len(start), columns, HEADS, WIDTH)
    query = query.astype(np.float32)
    keys, values = pool(seed)
    out = attend(query, keys, values, table, start, length)
    expected = oracle(query, keys, values, table, start, length)
    for row, live in enumerate(length):
        np.testing.assert_allclose(out[row, :live], expected[row, :live], atol=tolerance)
    assert np.isfinite(out).all()


LENGTHS = (0, 1, 63, 64, 65, 255, 256, 257, 1000)


@pytest.mark.parametrize("kind", ["reversed", "shuffled", "shared", "one page"])
def test_decode_over_hostile_tables(kind):
    """One new column per row, at every border of pages and tiles; row 0 sits out."""
    end = np.array(LENGTHS)
    compare(tables(kind, len(end)), np.maximum(end - 1, 0), (end > 0).astype(int), 1)


@pytest.mark.parametrize("columns", [5, 64])
def test_blocks_that_cross_borders(columns):
    """Causal inside the call; some rows are shorter than the call."""
    end = np.array(LENGTHS)
    length = np.minimum(end, columns)
    length[-1] = 3
    compare(tables("shuffled", len(end)), end - length, length, columns)


def test_a_prompt_from_its_start():
    compare(tables("reversed", 1), np.array([0]), np.array([300]), 320)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_unused_rows_may_hold_anything(poison):
    end, columns = np.array([1, 63, 65, 130, 0]), 1
    start, length = np.maximum(end - 1, 0), (end > 0).astype(int)
    table = tables("shuffled", 5)
    for row in range(5):  # separate pages, so that a row's unused pages are nobody's
        table[row, :3] = [3 * row + page for page in (2, 0, 1)]
    query = np.random.RandomState(0).randn(5, columns, HEADS, WIDTH).astype(np.float32)
    keys, values = pool(0)
    expected = attend(query, keys, values, table, start, length)
    used = np.zeros((PAGES, PAGE), bool)
    for row in range(5):
        for at in range(end[row]):
            used[table[row, at // PAGE], at % PAGE] = True
    dead = ~used[:, None, :, None]
    keys, values = np.where(dead, poison, keys), np.where(dead, poison, values)
    query[4] = poison
    table[:, 3:] = 10**6
    table[4] = -5
    out = attend(query, keys, values, table, start, length)
    np.testing.assert_array_equal(out[:4], expected[:4])


def test_a_row_does_not_depend_on_its_neighbours():
    """The trip count of the walk is that of the longest row; the others add exact zeros."""
    table = tables("shuffled", 2)
    query = np.random.RandomState(1).randn(2, 1, HEADS, WIDTH)
    keys, values = pool(1)
    short = attend(query, keys, values, table, [70, 0], [1, 0])
    beside_long = attend(query, keys, values, table, [70, 999], [1, 1])
    np.testing.assert_array_equal(short[0], beside_long[0])


def test_large_scores_stay_finite():
    """Scores of several hundred: the running maximum keeps every exponent <= 0."""
    query = 60 * np.random.RandomState(2).randn(1, 2, HEADS, WIDTH).astype(np.float32)
    keys, values = pool(2)
    table = tables("reversed", 1)
    out = attend(query, keys, values, table, [400], [2])
    expected = oracle(query, keys, values, table, [400], [2])
    np.testing.assert_allclose(out, expected, atol=2e-4)


def test_bf16_pages_hold_what_is_attended():
    query = np.random.RandomState(3).randn(2, 1, HEADS, WIDTH).astype(np.float32)
    keys, values = pool(3)
    table = tables("shuffled", 2)
    out = attend(query, keys, values, table, [99, 299], [1, 1], codec="bf16")
    rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32) for x in (keys, values)]
    expected = oracle(query, *rounded, table, [99, 299], [1, 1])
    np.testing.assert_allclose(out, expected, atol=2e-6)


@pytest.mark.parametrize("codec", CODECS)
def test_writes_land_where_reads_look(codec):
    """Live columns at their positions, nothing else anywhere, dead columns dropped."""
    codec = CODECS[codec]
    rows = np.random.RandomState(4).randn(4, 70, GROUPS, WIDTH).astype(np.float32)
    rows[2, 1:] = np.nan
    start, length = np.array([0, 130, 63, 5]), np.array([70, 33, 1, 0])
    table = np.array([[9, 1, 4], [30, 12, 39], [0, 20, 21], [10**6, -1, 3]])
    planes = {
        name: jnp.full((PAGES, GROUPS, PAGE, elements), 7, dtype)
        for name, (elements, dtype) in codec.planes(WIDTH).items()
    }
    arrays = [jnp.asarray(x, jnp.int32) for x in (table, start, length)]
    written = jax.jit(write_pages, static_argnums=1)(planes, codec, jnp.asarray(rows), *arrays)
    encoded = codec.encode(jnp.asarray(rows))
    for name, plane in planes.items():
        expected = np.array(plane)
        for row in range(4):
            for column in range(length[row]):
                at = start[row] + column
                expected[table[row, at // PAGE], :, at % PAGE] = encoded[name][row, column]
        np.testing.assert_array_equal(written[name], expected)


def test_worked_example_of_a_write():
    """Start 130, column 0: table entry 2, offset 2."""
    codec = CODECS["f32"]
    planes = {"rows": jnp.zeros((5, 1, PAGE, 2))}
    arrays = [jnp.asarray(x, jnp.int32) for x in ([[4, 3, 1]], [130], [1])]
    written = write_pages(planes, codec, jnp.ones((1, 1, 1, 2)), *arrays)["rows"]
    assert written[1, 0, 2].tolist() == [1, 1]
    assert float(written.sum()) == 2
