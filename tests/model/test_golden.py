"""The decoder against transformers (stored outputs) and against NumPy float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.checkpoint.to_huggingface import huggingface_tensors
from ninfer_jax.model.attention import NoMemory
from ninfer_jax.model.decoder import merge_decoder
from ninfer_jax.model.gated_deltanet import FreshDelta
from ninfer_jax.model.rotary import rotary_angles
from tests.golden.cases import CASES, FULL_LAYER, LINEAR_LAYER, Case
from tests.model.building import Driver, Model, build_model
from tests.model.oracle import OracleDecoder

LOGITS_TOLERANCE = 3e-4
"""Absolute; the f32 error of the reference itself is about 8e-5."""


@functools.cache
def model_of(case: Case):
    return build_model(case.config, case.parameters())


def run_whole(model: Model, case: Case) -> dict[str, np.ndarray]:
    """Our decoder over the whole sequence, with the mixer outputs of two layers."""

    @jax.jit
    def run(weights, ids, positions):
        decoder = merge_decoder(model.graph, weights)
        fresh = [
            NoMemory() if kind == "full_attention" else FreshDelta(chunk=64)
            for kind in case.config.layer_types
        ]
        hidden, _, _ = decoder(ids, positions, fresh)
        x, mixers = decoder.embedding(ids), {}
        rotary = rotary_angles(case.config, positions)
        for index in range(FULL_LAYER + 1):
            layer = decoder.layers[index]
            h = layer.input_norm(x)
            if index == LINEAR_LAYER and layer.kind == "linear_attention":
                mixers["linear_mixer"], _ = layer.gdn(h, fresh[index])
            if index == FULL_LAYER:
                mixers["full_mixer"], _ = layer.attention(h, rotary, fresh[index])
            x, _ = layer(x, rotary, fresh[index])
        return {"logits": decoder.logits(hidden), "hidden": hidden, **mixers}

    ids, positions = jnp.asarray(case.ids(), jnp.int32), jnp.asarray(case.positions(), jnp.int32)
    return {name: np.asarray(x[0]) for name, x in run(model.weights, ids, positions).items()}


@functools.cache
def ours(case: Case) -> dict[str, np.ndarray]:
    return run_whole(model_of(case), case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_transformers(case):
    stored = np.load(case.path)
    outputs = ours(case)
    worst = {name: float(np.abs(outputs[name] - stored[name]).max()) for name in stored.files}
    print(case.name, worst)
    assert sorted(outputs) == sorted(stored.files)
    for name in stored.files:
        scale = max(1.0, float(np.abs(stored[name]).max()) / 4)
        assert worst[name] <= LOGITS_TOLERANCE * scale, worst


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_float64(case):
    oracle = OracleDecoder(case.component, huggingface_tensors(case.config, case.parameters()))
    hidden, logits = oracle(case.ids()[0], case.positions()[:, 0])
    outputs = ours(case)
    expected = {
        "logits": logits,
        "hidden": hidden,
        "linear_mixer": oracle.mixers[LINEAR_LAYER],
        "full_mixer": oracle.mixers[FULL_LAYER],
    }
    worst = {name: float(np.abs(outputs[name] - x).max()) for name, x in expected.items()}
    print(case.name, worst, "largest logit", np.abs(logits).max())
    assert worst["logits"] <= LOGITS_TOLERANCE
    assert worst["linear_mixer"] <= LOGITS_TOLERANCE
    assert worst["full_mixer"] <= LOGITS_TOLERANCE


def test_three_axes_matter():
    """A case in which all axes are equal could not find a wrong interleave."""
    case = next(case for case in CASES if case.separate_axes)
    positions = case.positions()
    assert len({tuple(axis.ravel()) for axis in positions}) == 3
    oracle = OracleDecoder(case.component, huggingface_tensors(case.config, case.parameters()))
    _, logits = oracle(case.ids()[0], positions[:, 0])
    _, other = oracle(case.ids()[0], positions[[0, 2, 1], 0])
    assert np.abs(logits - other).max() > 100 * LOGITS_TOLERANCE


@pytest.mark.parametrize("case", CASES[:1], ids=lambda case: case.name)
def test_serving_state_holds_what_float64_computes(case):
    """Logits, KV rows, recurrent state and convolution columns over pages and slots."""
    oracle = OracleDecoder(case.component, huggingface_tensors(case.config, case.parameters()))
    tokens = case.ids()[0]
    _, logits = oracle(tokens, case.positions()[:, 0])
    driver = Driver(model_of(case), pages=5, slots=3)
    table = np.array([4, 1])
    out = driver.feed(tokens, 2, table, [(case.columns, 128)])
    kept = driver.remembered(2, table, case.columns)
    worst = {"logits": float(np.abs(out - logits).max())}
    for index, kind in enumerate(case.config.layer_types):
        if kind == "full_attention":
            pairs = {"keys": oracle.keys[index], "values": oracle.values[index]}
            for name, expected in pairs.items():
                worst[f"{index}/{name}"] = float(
                    np.abs(kept[f"{index}/{name}/rows"] - expected).max()
                )
        else:
            worst[f"{index}/S"] = float(
                np.abs(kept[f"{index}/recurrent"] - oracle.states[index]).max()
            )
            last = oracle.raw_columns[index][-3:]
            worst[f"{index}/convolution"] = float(np.abs(kept[f"{index}/convolution"] - last).max())
    print(worst)
    assert max(worst.values()) <= LOGITS_TOLERANCE
