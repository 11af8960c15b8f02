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
from ninfer_jax.errors import ArtifactError
from ninfer_jax.model.config import text_config
from ninfer_jax.model.dflash2 import FINISH, PREPARE, DFlash2, DynamicConvolution
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


def test_convolution_goldens():
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
    np.testing.assert_allclose(before, expected, atol=1e-6)
    expected = [
        [0.12888653, 0.37228053, 0.09927950, -0.64573281],
        [0.69912506, 0.55347495, 0.09280546, 0.22602649],
        [-1.88789131, -2.24226469, -0.50863202, 0.64699315],
    ]
    np.testing.assert_allclose(after, expected, atol=1e-6)


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


@functools.partial(jax.jit, static_argnames=("graph", "width"))
def draft(graph, width, weights, embedded, features, frontier):
    """Appends `frontier` columns to an empty ring and runs one block."""
    config = draft_config(small_model())
    module = nnx.merge(graph, nnx.State(weights))
    spec = ring_spec(config, 2, CODEC)
    # Unused rows are poisoned.
    rings = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), spec)
    slots, zero = jnp.array([1]), jnp.array([0])
    columns = jnp.arange(features.shape[1])[None]
    rows = module.context_rows(features, columns)
    rings = append_rows(rings, rows, CODEC, slots, zero, frontier)
    positions = frontier[:, None] + jnp.arange(width)
    seen = seen_rows(frontier, positions, config.sliding_window)
    return module(embedded, positions, ring_rows(rings, CODEC, slots), seen)


@pytest.mark.parametrize("width", [2, 8, 16])
@pytest.mark.parametrize("frontier", [0, 1, 31, 32, 37, 70])
def test_blocks_agree_with_float64(width, frontier):
    config = draft_config(small_model())
    graph, weights, named = drafter()
    rng = np.random.RandomState(width * 100 + frontier)
    features = rng.randn(1, 70, config.feature_width).astype(np.float32)
    embedded = rng.randn(1, width, config.hidden_size).astype(np.float32)
    found = draft(graph, width, weights, embedded, features, jnp.array([frontier]))
    expected = oracle.block(config, named, embedded[0], features[0, :frontier])
    difference = np.abs(np.asarray(found[0]) - expected).max()
    print(difference, np.abs(expected).max())
    assert difference <= 1e-4


def test_ring_in_any_pieces():
    """Chunks longer than the window, prefixes, nothing, and inactive rows."""
    config = draft_config(small_model())
    rng, window = np.random.RandomState(0), config.sliding_window
    columns = rng.randn(2, 100, 2, config.num_key_value_heads, config.head_dim).astype(np.float32)
    spec = ring_spec(config, 3, CODEC)
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec)

    def appended(pieces, width):
        rings, start = empty, 0
        for count in pieces:
            part = np.full((2, width, *columns.shape[2:]), np.nan, np.float32)
            part[:, :count] = columns[:, start : start + count]
            rows = [(jnp.asarray(part[:, :, 0]), jnp.asarray(part[:, :, 1]))] * config.num_layers
            slots = jnp.array([2, 3])
            rings = append_rows(
                rings, rows, CODEC, slots, jnp.full(2, start), jnp.array([count, width])
            )
            start += count
        return rings

    one_by_one = appended([1] * 100, 1)
    for pieces, width in (([100], 128), ([37, 0, 63], 64), ([5] * 20, 8), ([window, 68], 80)):
        for kept, expected in zip(
            jax.tree.leaves(appended(pieces, width)), jax.tree.leaves(one_by_one), strict=True
        ):
            np.testing.assert_array_equal(kept, expected)
    # Slot 3 does not exist: the row wrote nothing anywhere.
    for kept in jax.tree.leaves(one_by_one):
        assert not np.asarray(kept[:2]).any()


def test_the_window_rule():
    """Distance window - 1 is inside, window is outside; a new ring is empty."""
    seen = np.asarray(seen_rows(jnp.array([40, 0]), jnp.array([[40, 43], [0, 3]]), 32))
    assert not seen[1].any()
    # Rows hold positions 8 .. 39; row of position 8 is 8.
    assert not seen[0, 0, 8] and seen[0, 0, 9]
    assert seen[0].sum(axis=1).tolist() == [31, 28]


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


def test_the_published_config():
    config = dflash2_config(published_dflash2(), TEXT_27B)
    assert (config.taps, config.mask_token) == ((5, 19, 33, 47, 61), 248070)
    assert (config.conv_taps, config.group_size, config.top_k) == (2, 16, 16)
    assert (config.selector_rank, config.sliding_window, config.num_layers) == (256, 2048, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_causal": True}, "is_causal is True, expected False"),
        ({"output_multiplier": 2.0}, "output_multiplier is 2.0, expected 1"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0, expected None"),
        ({"layer_types": ["full_attention"] * 5}, "every layer must be sliding_attention"),
    ],
)
def test_drafters_of_other_models_are_refused(change, message):
    with pytest.raises(ArtifactError, match=message):
        dflash2_config(published_dflash2() | change, TEXT_27B)


def test_the_mask_is_an_id_of_the_tokenizer():
    with pytest.raises(ArtifactError, match="none of the tokenizer's 248000 ids"):
        dflash2_config(published_dflash2(), text_config(published_text(), 248000))
