"""The MTP head against float64: prompts, chains and rounds over its own paged cache."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ninfer_jax.checkpoint.names import named_parameters
from ninfer_jax.model.compilation import compiler_options
from ninfer_jax.model.decoder import merge_decoder
from ninfer_jax.model.mtp import MultiTokenPrediction
from ninfer_jax.model.state import KvPool, PagedMemory, Rows, StateShape, pool_spec
from ninfer_jax.model.weights import as_weights, initial_arrays, spec_tree
from ninfer_jax.quantization.kv import CODECS
from tests.model import draft_oracle as oracle
from tests.model.building import ADDRESSABLE, SMALL, small_model

CODEC, PAGES, OUTSIDE = CODECS["f32"], 8, 99
TABLES = np.array([[6, 1], [3, 4]])
"""Pages of two lanes: neither contiguous nor ascending; 0, 2, 5 and 7 are nobody's."""
LENGTHS = (61, 9)
"""Rows of the prompts; chains of the first lane cross a border of pages."""
ROPE = SMALL["rope_parameters"]
TOLERANCE = 1e-4


@functools.cache
def head():
    """Graph, weight tree and float64 arrays by name, all random."""
    module = MultiTokenPrediction(small_model().config)
    graph, _ = nnx.split(module)
    rng = np.random.RandomState(3)
    arrays = jax.tree.map(
        lambda x: np.asarray(x) + 0.1 * rng.randn(*x.shape).astype(np.float32),
        initial_arrays(module, 2),
    )
    specs = spec_tree(module)
    named = {name: np.asarray(x, np.float64) for name, x in named_parameters(specs, arrays).items()}
    return graph, as_weights(specs, jax.tree.map(jnp.asarray, arrays), jnp.float32), named


@functools.cache
def tables() -> tuple[np.ndarray, np.ndarray]:
    """Embedding and head rows of the target, f64, addressable ids only."""
    model = small_model()
    named = named_parameters(model.specs, model.arrays)
    names = ("text/token_embedding", "text/output_head")
    return tuple(np.asarray(named[name], np.float64)[:ADDRESSABLE] for name in names)


@functools.partial(jax.jit, static_argnames="graph", compiler_options=compiler_options("cpu"))
def run(graph, weights, target, pool, embedded, hidden, positions, rows):
    module = nnx.merge(graph, nnx.State(weights))
    out, memory = module(embedded, hidden, positions, PagedMemory(pool, rows, CODEC))
    return out, merge_decoder(small_model().graph, target).head_logits(out), memory.pool


def poisoned() -> KvPool:
    """A cache that holds nothing but NaN."""
    shape = StateShape(PAGES, 2, CODEC, jnp.dtype(jnp.float32))
    spec = pool_spec(small_model().config, shape)
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), spec)


def call(pool, lanes, start, columns, width, filler=np.nan, positions=None):
    """One call of `lanes` (None is an inactive row) with columns (tokens, hidden) per lane.

    What is not live holds `filler`. Returns live columns and logits per lane, and the pool.
    """
    graph, weights, _ = head()
    embedded = np.full((len(lanes), width, small_model().config.hidden_size), filler)
    hidden, live = embedded.copy(), [len(tokens) for tokens, _ in columns]
    for row, (tokens, vectors) in enumerate(columns):
        embedded[row, : live[row]] = tables()[0][tokens]
        hidden[row, : live[row]] = vectors
    rows = Rows(
        slots=jnp.array([OUTSIDE if lane is None else lane for lane in lanes]),
        block_table=jnp.asarray([TABLES[0] if lane is None else TABLES[lane] for lane in lanes]),
        start=jnp.asarray(start),
        length=jnp.asarray(live),
        fresh=jnp.zeros(len(lanes), bool),
    )
    place = rows.positions(width) if positions is None else jnp.asarray(positions)
    wide = (jnp.asarray(x, jnp.float32) for x in (embedded, hidden))
    out, logits, pool = run(graph, weights, small_model().weights, pool, *wide, place, rows)
    return (
        [np.asarray(out[row, :n]) for row, n in enumerate(live)],
        [np.asarray(logits[row, :n]) for row, n in enumerate(live)],
        pool,
    )


NOTHING = (np.zeros(0, int), np.zeros((0, SMALL["hidden_size"])))


@functools.cache
def sequence(lane: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tokens at 1 .. 80 and hidden states of the target at 0 .. 79."""
    rng = np.random.RandomState(10 * seed + lane)
    hidden = rng.randn(80, small_model().config.hidden_size).astype(np.float32)
    return rng.randint(0, ADDRESSABLE, 80), hidden


def part(lane: int, first: int, last: int, seed: int = 0):
    return tuple(x[first:last] for x in sequence(lane, seed))


def prompts(filler=np.nan):
    """Both lanes' prompts in one call: columns, logits, pool."""
    return call(
        poisoned(), [0, 1], [0, 0], [part(i, 0, n) for i, n in enumerate(LENGTHS)], 64, filler
    )


def chain(pool, lanes, start, columns, length):
    """Drafts `length` tokens behind the columns (a target's row per lane), then its own."""
    out, logits, pool = call(pool, lanes, start, columns, 4)
    live = [len(tokens) for tokens, _ in columns]
    drafts = [[int(np.argmax(rows[-1]))] for rows in logits]
    kept, scores = [[x[-1]] for x in out], [[x[-1]] for x in logits]
    for step in range(length - 1):
        own = [
            (np.array(tokens[-1:]), rows[-1][None])
            for tokens, rows in zip(drafts, kept, strict=True)
        ]
        first = [a + n + step for a, n in zip(start, live, strict=True)]
        out, logits, pool = call(pool, lanes, first, own, 1)
        for row in range(len(lanes)):
            drafts[row].append(int(np.argmax(logits[row][0])))
            kept[row].append(out[row][0])
            scores[row].append(logits[row][0])
    return [np.array(x) for x in drafts], [np.array(x) for x in scores], pool


def cached(pool: KvPool, lane: int, length: int) -> np.ndarray:
    """Keys and values of rows 0 .. length - 1 of a lane."""
    kept = []
    for planes in (pool.keys, pool.values):
        pages = np.asarray(planes["rows"])[TABLES[lane]]
        kept.append(np.moveaxis(pages, 1, 2).reshape(-1, *pages.shape[1::2])[:length])
    return np.stack(kept)


def expected(lane: int, length: int, positions=None) -> np.ndarray:
    tokens, hidden = part(lane, 0, length)
    place = np.broadcast_to(np.arange(length), (3, length)) if positions is None else positions
    return oracle.mtp(small_model().config, ROPE, head()[2], tables()[0][tokens], hidden, place)


def assert_close(found, wanted) -> None:
    difference = np.abs(found - wanted).max()
    print(difference, np.abs(wanted).max())
    assert difference <= TOLERANCE


def test_prompts_agree_with_float64():
    out, logits, _ = prompts()
    for lane, length in enumerate(LENGTHS):
        wanted = expected(lane, length)
        assert_close(out[lane], wanted)
        assert_close(logits[lane], wanted @ tables()[1].T)


@pytest.mark.parametrize("cuts", [(60,), (1, 2, 57), (30,), (4, 7, 0, 50)])
def test_a_prompt_in_any_pieces(cuts):
    """The last column alone is how a prompt ends: its token is known after the prompt."""
    pool, start, out = poisoned(), 0, []
    for count in (*cuts, LENGTHS[0] - sum(cuts)):
        columns = [part(0, start, start + count), NOTHING]
        found, _, pool = call(pool, [0, None], [start, 7], columns, 4 if count <= 4 else 64)
        out.append(found[0])
        start += count
    assert_close(np.concatenate(out), expected(0, LENGTHS[0]))
    assert_close(cached(pool, 0, start), cached(prompts()[2], 0, start))


def test_rotary_positions_have_three_axes():
    rng = np.random.RandomState(4)
    positions = np.sort(rng.randint(0, 60, (3, 2, 64)), axis=-1)
    columns = [part(lane, 0, 50) for lane in range(2)]
    out, _, _ = call(poisoned(), [0, 1], [0, 0], columns, 64, positions=positions)
    for lane in range(2):
        assert_close(out[lane], expected(lane, 50, positions[:, lane, :50]))


@functools.cache
def oracle_chain(lane: int, rows: int, length: int):
    tokens, hidden = part(lane, 0, rows)
    config, named = small_model().config, head()[2]
    return oracle.mtp_chain(config, ROPE, named, *tables(), tokens, hidden, length)


def assert_chain(drafts, scores, lane: int, rows: int) -> None:
    tokens, logits, _ = oracle_chain(lane, rows, len(drafts))
    first, second = np.sort(logits, axis=-1)[:, -1], np.sort(logits, axis=-1)[:, -2]
    assert (first - second).min() > 2 * TOLERANCE, "a near-tie decides nothing"
    np.testing.assert_array_equal(drafts, tokens)
    assert_close(scores, logits)


def test_chains_agree_with_float64():
    """Each step takes the column of the step before; rows 61 .. 65 cross into a second page."""
    _, _, pool = prompts()
    columns = [part(lane, n, n + 1) for lane, n in enumerate(LENGTHS)]
    drafts, scores, _ = chain(pool, [0, 1], list(LENGTHS), columns, 5)
    for lane, length in enumerate(LENGTHS):
        assert_chain(drafts[lane], scores[lane], lane, length + 1)


def test_a_round_overwrites_what_was_drafted():
    """Rewind and refresh: the cache is that of a lane that never drafted, bit for bit."""
    _, _, pool = prompts()
    columns = [part(lane, n, n + 1) for lane, n in enumerate(LENGTHS)]
    _, _, drafted = chain(pool, [0, 1], list(LENGTHS), columns, 5)
    for accepted in ((3, 1), (1, 2)):
        # Rows behind the accepted ones stay those of the chain before.
        columns = [
            part(i, n, n + a) for i, (n, a) in enumerate(zip(LENGTHS, accepted, strict=True))
        ]
        found = chain(drafted, [0, 1], list(LENGTHS), columns, 5)
        clean = chain(pool, [0, 1], list(LENGTHS), columns, 5)
        for lane, length in enumerate(LENGTHS):
            end = length + accepted[lane]
            assert_chain(found[0][lane], found[1][lane], lane, end)
            np.testing.assert_array_equal(found[1][lane], clean[1][lane])
            kept = cached(found[2], lane, end)
            np.testing.assert_array_equal(kept, cached(clean[2], lane, end))


def test_another_continuation_of_a_prompt():
    """A second turn that goes on with other tokens sees nothing of the first."""
    _, _, pool = prompts()
    columns = [part(lane, n, n + 4) for lane, n in enumerate(LENGTHS)]
    _, _, pool = call(pool, [0, 1], list(LENGTHS), columns, 4)
    columns = [part(lane, n, n + 4, seed=1) for lane, n in enumerate(LENGTHS)]
    found, _, pool = call(pool, [0, 1], list(LENGTHS), columns, 4)
    clean, _, _ = call(prompts()[2], [0, 1], list(LENGTHS), columns, 4)
    for lane in range(2):
        np.testing.assert_array_equal(found[lane], clean[lane])


def test_lanes_together_are_lanes_alone_and_inactive_rows_write_nothing():
    together, _, pool = prompts()
    for lane, length in enumerate(LENGTHS):
        columns = [NOTHING, part(lane, 0, length)]
        alone, _, own = call(poisoned(), [None, lane], [5, 0], columns, 64)
        np.testing.assert_array_equal(alone[1], together[lane])
        kept = cached(own, lane, length)
        assert np.isfinite(kept).all()
        np.testing.assert_array_equal(kept, cached(pool, lane, length))
        # Nothing but the lane's rows: all else is still poison.
        total = sum(np.isfinite(np.asarray(x)).sum() for x in jax.tree.leaves(own))
        assert total == kept.size


def test_poison_in_inert_columns_changes_nothing():
    found, scores, pool = prompts()
    clean, logits, other = prompts(filler=0.0)
    for lane, length in enumerate(LENGTHS):
        np.testing.assert_array_equal(found[lane], clean[lane])
        np.testing.assert_array_equal(scores[lane], logits[lane])
        np.testing.assert_array_equal(cached(pool, lane, length), cached(other, lane, length))
