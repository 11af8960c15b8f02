"""The block drafter against float64: convolution goldens, whole blocks, its ring."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ninfer_jax.artifact.parameters import config_parameters
from ninfer_jax.artifact.published_configs import dflash2_config as published_dflash2
from ninfer_jax.artifact.published_configs import text_config as published_text
from ninfer_jax.checkpoint.names import named_parameters, spec_parts
from ninfer_jax.model.config import text_config
from ninfer_jax.model.dflash2 import (
    FINISH,
    PREPARE,
    DFlash2,
    DynamicConvolution,
    block_attention,
)
from ninfer_jax.model.draft_config import dflash2_config
from ninfer_jax.model.draft_ring import append_rows, ring_rows, ring_spec, seen_rows
from ninfer_jax.model.mtp import MultiTokenPrediction
from ninfer_jax.model.weights import as_weights, initial_arrays, is_spec, spec_tree
from ninfer_jax.quantization.kv import CODECS
from tests.engine.drafting import draft_config
from tests.model import draft_oracle as oracle
from tests.model.building import small_model

CODEC = CODECS["f32"]
TEXT_27B = text_config(published_text(), 248077)


def convolved(x: float, side: int) -> np.ndarray:
    """The goldens by the oracle."""
    base, projection = oracle.fill((2, 2, 4), 0.8), 0.5 * oracle.fill((8, 4), 1.3)
    normed = oracle.fill((3, 4), 0.6)
    return oracle.convolve(oracle.fill((3, 4), x), normed, base, projection, 2, side)


def test_convolution_goldens():
    """Of `docs/model.md` 9.4, f32 and the oracle alike."""
    config = draft_config(small_model())
    config = type(config)(**(vars(config) | {"hidden_size": 4, "group_size": 2}))
    conv = DynamicConvolution("c", config)
    graph, _ = nnx.split(conv)
    arrays = {
        "base": oracle.fill((2, 2, 4), 0.8),
        "projection": {"weight": 0.5 * oracle.fill((8, 4), 1.3)},
    }
    arrays = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), arrays)
    module = nnx.merge(graph, nnx.State(as_weights(spec_tree(conv), arrays, jnp.float32)))
    normed = jnp.asarray(oracle.fill((3, 4), 0.6), jnp.float32)[None]
    kernel = module.kernel(normed)
    before = module(normed, kernel, PREPARE)[0]
    after = module(jnp.asarray(oracle.fill((3, 4), 0.37), jnp.float32)[None], kernel, FINISH)[0]
    expected = [
        [0.33673158, 0.81887089, 1.04915554, 0.23201684],
        [-0.58416201, -2.26534557, -1.90333523, -0.37498842],
        [0.09690732, 0.22231929, -0.18557959, -1.46332105],
    ]
    np.testing.assert_allclose(before, expected, atol=5e-7)
    np.testing.assert_allclose(convolved(0.6, 0), expected, atol=1e-8)
    expected = [
        [0.12888653, 0.37228053, 0.09927950, -0.64573281],
        [0.69912506, 0.55347495, 0.09280546, 0.22602649],
        [-1.88789131, -2.24226469, -0.50863202, 0.64699315],
    ]
    np.testing.assert_allclose(after, expected, atol=5e-7)
    np.testing.assert_allclose(convolved(0.37, 1), expected, atol=1e-8)


def test_convolutions_agree_with_float64():
    """Every (side, tap, group) has its own coefficients; rows of a batch do not mix."""
    config, rng = draft_config(small_model()), np.random.RandomState(2)
    conv = DynamicConvolution("c", config)
    width, groups = config.hidden_size, config.hidden_size // config.group_size
    base, projection = rng.randn(2, 2, width), rng.randn(4 * groups, width) / 8
    arrays = {"base": jnp.asarray(base), "projection": {"weight": jnp.asarray(projection)}}
    graph, _ = nnx.split(conv)
    module = nnx.merge(graph, nnx.State(as_weights(spec_tree(conv), arrays, jnp.float32)))
    x, normed = rng.randn(2, 2, 9, width)
    kernel = module.kernel(jnp.asarray(normed, jnp.float32))
    for side in (PREPARE, FINISH):
        found = module(jnp.asarray(x, jnp.float32), kernel, side)
        for row in range(2):
            wanted = oracle.convolve(x[row], normed[row], base, projection, config.group_size, side)
            np.testing.assert_allclose(found[row], wanted, atol=2e-5)


@functools.cache
def drafter():
    """Graph, weight tree and float64 arrays by name, all random."""
    module = DFlash2(draft_config(small_model()))
    graph, _ = nnx.split(module)
    rng = np.random.RandomState(5)
    arrays = jax.tree.map(
        lambda x: np.asarray(x) + 0.1 * rng.randn(*x.shape).astype(np.float32),
        initial_arrays(module, 1),
    )
    specs = spec_tree(module)
    return (
        graph,
        as_weights(specs, jax.tree.map(jnp.asarray, arrays), jnp.float32),
        {name: np.asarray(x, np.float64) for name, x in named_parameters(specs, arrays).items()},
    )


FRONTIERS = (0, 1, 31, 32, 37, 96)
"""Around a window of 32, and three windows."""
ROWS = len(FRONTIERS)


@functools.cache
def inputs() -> tuple[np.ndarray, np.ndarray]:
    """Features [rows, 96, F] and embedding rows [rows, 16, D], one row per frontier."""
    config, rng = draft_config(small_model()), np.random.RandomState(7)
    features = rng.randn(ROWS, max(FRONTIERS), config.feature_width).astype(np.float32)
    return features, rng.randn(ROWS, 16, config.hidden_size).astype(np.float32)


@functools.partial(jax.jit, static_argnames="graph")
def draft(graph, weights, embedded, features, frontier, filler, hidden):
    """Appends each row's features to a ring of `filler` and runs one block.

    The last `hidden[b]` columns of a row's block are not seen by the columns before them.
    """
    config = draft_config(small_model())
    module = nnx.merge(graph, nnx.State(weights))
    batch, width, _ = embedded.shape
    rings = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, filler, leaf.dtype), ring_spec(config, batch + 1, CODEC)
    )
    # Row b lives in slot b + 1.
    slots, start = jnp.arange(batch) + 1, jnp.zeros(batch, jnp.int32)
    column = jnp.arange(features.shape[1])
    features = jnp.where((column < frontier[:, None])[..., None], features, filler)
    rows = module.context_rows(features, jnp.broadcast_to(column, features.shape[:2]))
    rings = append_rows(rings, rows, CODEC, slots, start, frontier)
    positions = frontier[:, None] + jnp.arange(width)
    seen = seen_rows(frontier, positions, config.sliding_window)
    whole = module(embedded, positions, ring_rows(rings, CODEC, slots), seen)
    block = jnp.broadcast_to(jnp.arange(width), (batch, width, width))
    seen = jnp.concatenate([seen, block < width - hidden[:, None, None]], axis=-1)
    return whole, module.block(embedded, positions, ring_rows(rings, CODEC, slots), seen)


def drafted(width, filler=np.nan, rows=range(ROWS), hidden=None):
    """Hidden columns of the rows' blocks, [rows, W - 1, D]: whole, and with hidden columns."""
    graph, weights, _ = drafter()
    features, embedded = (x[list(rows)] for x in inputs())
    frontier = jnp.asarray([FRONTIERS[row] for row in rows])
    hidden = jnp.zeros(len(rows), jnp.int32) if hidden is None else jnp.asarray(hidden)
    return draft(graph, weights, embedded[:, :width], features, frontier, filler, hidden)


def assert_block(found: np.ndarray, row: int, width: int) -> None:
    features, embedded = inputs()
    config, (_, _, named) = draft_config(small_model()), drafter()
    wanted = oracle.block(config, named, embedded[row, :width], features[row, : FRONTIERS[row]])
    difference = np.abs(np.asarray(found) - wanted).max()
    print(width, FRONTIERS[row], difference, np.abs(wanted).max())
    assert difference <= 1e-4


@pytest.mark.parametrize("width", [2, 9, 16])
def test_blocks_agree_with_float64(width):
    """Rows of all frontiers in one call; whatever is not live is NaN."""
    found, _ = drafted(width)
    for row in range(ROWS):
        assert_block(found[row], row, width)


def test_blocks_of_every_width():
    """A block whose last columns nobody sees is a narrower block."""
    widths = range(3, 16)
    rows = [width % ROWS for width in widths]
    _, found = drafted(16, rows=rows, hidden=[16 - width for width in widths])
    for index, (row, width) in enumerate(zip(rows, widths, strict=True)):
        assert_block(found[index, : width - 1], row, width)


def test_context_rows_agree_with_float64():
    """From features and positions alone, whatever the call's first position is."""
    config, (graph, weights, named) = draft_config(small_model()), drafter()
    module, features = nnx.merge(graph, nnx.State(weights)), inputs()[0][:2]
    rows = module.context_rows(jnp.asarray(features[:, 37:60]), jnp.arange(37, 60)[None])
    for layer, (key, value) in enumerate(rows):
        for row in range(2):
            keys, values = oracle.context_rows(config, named, layer, features[row, :60])
            np.testing.assert_allclose(key[row], keys[37:], atol=1e-4)
            np.testing.assert_allclose(value[row], values[37:], atol=1e-4)


def test_poison_changes_no_bit():
    """In unused rows of the ring and in features behind the count."""
    for found, clean in zip(drafted(9), drafted(9, filler=0.0), strict=True):
        np.testing.assert_array_equal(found, clean)


def test_attention_selects_what_is_seen():
    """Keys and values that no column sees may be NaN; heads read key head `n // ratio`."""
    rng = np.random.RandomState(1)
    query, key, value = (rng.randn(2, n, h, 8) for n, h in ((3, 6), (7, 2), (7, 2)))
    seen = rng.rand(2, 3, 7) < 0.5
    seen[:, :, 0], seen[0, :, [2, 5]], seen[1, :, 6] = True, False, False
    unseen = ~seen.any(axis=1)
    assert unseen.any(axis=1).all()
    dirty = [np.where(unseen[:, :, None, None], np.nan, x) for x in (key, value)]
    arrays = [jnp.asarray(x, jnp.float32) for x in (query, key, value, *dirty)]
    found = block_attention(arrays[0], *arrays[1:3], jnp.asarray(seen))
    poisoned = block_attention(arrays[0], *arrays[3:], jnp.asarray(seen))
    np.testing.assert_array_equal(poisoned, found)
    for row, column, head in np.ndindex(2, 3, 6):
        at = np.nonzero(seen[row, column])[0]
        scores = key[row, at, head // 3] @ query[row, column, head] / np.sqrt(8)
        law = np.exp(scores) / np.exp(scores).sum()
        wanted = law @ value[row, at, head // 3]
        np.testing.assert_allclose(found[row, column, head], wanted, atol=1e-5)


def parameters_of(module: nnx.Module) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for spec in jax.tree.leaves(spec_tree(module), is_leaf=is_spec):
        for name, rows in spec_parts(spec):
            shapes[name] = spec.shape if rows is None else (rows, spec.columns)
    return shapes


def test_weights_are_those_of_the_published_drafters():
    configs = {
        "text": published_text(),
        "mtp": {"architectures": ["Qwen3_5MTP"]},
        "dflash2": published_dflash2(),
    }
    table = {p.name: p.shape for p in config_parameters(configs, None)}
    draft_27b = dflash2_config(published_dflash2(), TEXT_27B)
    found = parameters_of(DFlash2(draft_27b)) | parameters_of(MultiTokenPrediction(TEXT_27B))
    assert found == {name: shape for name, shape in table.items() if not name.startswith("text/")}
