"""Names and shapes by hand are those that the model's specs declare."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.artifact.parameters import model_parameters
from ninfer_jax.artifact.published_configs import text_config as published_text_config
from ninfer_jax.checkpoint.names import arrays_by_spec, named_parameters, parameter_shapes
from ninfer_jax.checkpoint.synthetic import synthetic_array, synthetic_parameters
from ninfer_jax.model.config import text_config
from ninfer_jax.model.decoder import build_decoder
from ninfer_jax.model.training import build_training_model
from ninfer_jax.model.weights import MatrixSpec, is_spec
from tests.golden.cases import DEMO, TINY

CONFIGS = {
    "tiny": text_config(TINY, 500),
    "demo": text_config(DEMO, 1000),
    "27b": text_config(published_text_config(), 248077),
}


def declared_shapes(config) -> dict[str, tuple[int, ...]]:
    _, specs = build_decoder(config, jnp.dtype(jnp.float32))
    shapes = {}
    for spec in jax.tree.leaves(specs, is_leaf=is_spec):
        if isinstance(spec, MatrixSpec):
            shapes |= {
                name: (rows, spec.columns) for name, rows in zip(spec.names, spec.rows, strict=True)
            }
        else:
            shapes[spec.name] = spec.shape
    return shapes


@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_declares_the_same(name):
    assert parameter_shapes(CONFIGS[name]) == declared_shapes(CONFIGS[name])


def test_the_artifact_inventory_lists_the_same():
    inventory = {parameter.name: parameter.shape for parameter in model_parameters(("text",))}
    assert parameter_shapes(CONFIGS["27b"]) == inventory


def test_number_of_parameters_of_the_27b():
    assert sum(np.prod(s) for s in parameter_shapes(CONFIGS["27b"]).values()) == 26_895_998_464


def test_names_and_specs_are_inverse():
    config = CONFIGS["tiny"]
    _, specs = build_decoder(config, jnp.dtype(jnp.float32))
    parameters = synthetic_parameters(config, 3)
    back = named_parameters(specs, arrays_by_spec(specs, parameters))
    assert back.keys() == parameters.keys()
    for name, values in parameters.items():
        np.testing.assert_array_equal(back[name], values)


def test_trained_arrays_have_names():
    config = CONFIGS["tiny"]
    _, specs = build_decoder(config, jnp.dtype(jnp.float32))
    parameters = named_parameters(specs, build_training_model(config, seed=0))
    assert {name: x.shape for name, x in parameters.items()} == parameter_shapes(config)


def test_synthetic_weights_are_a_fixed_formula():
    """These numbers must never change: golden files depend on them."""
    values = synthetic_array("text/layers/0/mlp/gate", (2, 3), seed=1)
    again = synthetic_array("text/layers/0/mlp/gate", (2, 3), seed=1)
    np.testing.assert_array_equal(values, again)
    np.testing.assert_allclose(values, EXPECTED, rtol=1e-6)
    assert not np.allclose(values, synthetic_array("text/layers/1/mlp/gate", (2, 3), seed=1))
    assert not np.allclose(values, synthetic_array("text/layers/0/mlp/gate", (2, 3), seed=2))


EXPECTED = [[-0.0048596039, 0.66142398, 0.60718822], [0.30367103, -0.02647681, 0.42929676]]


def test_synthetic_weights_hide_nothing():
    """Norms are not 0 or 1, decays differ by head, and offset norms stay offset."""
    parameters = synthetic_parameters(CONFIGS["tiny"], 0)
    assert all(x.dtype == np.float32 for x in parameters.values())
    decay = np.exp(np.concatenate([x for name, x in parameters.items() if name.endswith("a_log")]))
    assert decay.min() > 0.2 and decay.max() < 4.2 and decay.std() > 0.5
    offset = np.concatenate([x for name, x in parameters.items() if "_norm" in name])
    plain = np.concatenate([x for name, x in parameters.items() if name.endswith("gdn/norm")])
    assert abs(offset.mean()) < 0.05 and abs(plain.mean() - 1) < 0.1
    assert 0.15 < offset.std() < 0.25 and 0.15 < plain.std() < 0.25
