"""NaN in everything that is not in use changes no bit of what is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.checkpoint.synthetic import synthetic_parameters
from ninfer_jax.model.config import text_config
from ninfer_jax.model.state import StateShape, state_spec
from ninfer_jax.quantization.kv import CODECS
from tests.model.building import ADDRESSABLE, SMALL, Driver, build_model, small_model

PAGES, SLOTS = 17, 5
TABLES = np.array([[16, 2, 9], [4, 11, 0]])
POISON_ID = ADDRESSABLE + 3
"""An id whose embedding row holds NaN."""


def poisoned_model():
    """The small model with NaN in the unaddressable rows of embedding and head."""
    config = text_config(SMALL, ADDRESSABLE)
    parameters = synthetic_parameters(config, 0)
    for name in ("text/token_embedding", "text/output_head"):
        parameters[name][ADDRESSABLE:] = np.nan
    return build_model(config, parameters)


def nan_state(codec: str):
    """A state in which every row, page, slot and column is NaN."""
    shape = StateShape(PAGES, SLOTS, CODECS[codec], jnp.dtype(jnp.float32))

    def poison(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.full(leaf.shape, jnp.nan, leaf.dtype)
        return jnp.full(leaf.shape, 0x7FC0, leaf.dtype)  # the bits of a BF16 NaN

    return jax.tree.map(poison, state_spec(small_model().config, shape))


def run(model, state, codec: str, filler: int) -> dict[str, np.ndarray]:
    """Two sequences: a prefill in two pieces each, then decode in a batch of four.

    Everything that is not live (padded columns, inactive rows, unused table entries) holds
    `filler` as id and arbitrary numbers elsewhere.
    """
    driver = Driver(model, PAGES, SLOTS, codec, state)
    lengths, slots = (70, 130), (3, 1)
    sequences = [
        np.random.RandomState(i).randint(0, ADDRESSABLE, n + 6) for i, n in enumerate(lengths)
    ]
    outputs = {}
    tables = TABLES.copy()
    tables[0, 2] = 10_000 if filler == POISON_ID else 7  # behind the last live page
    for index, (tokens, length) in enumerate(zip(sequences, lengths, strict=True)):
        for start in range(0, length, 64):
            live = min(64, length - start)
            ids = np.full((1, 64), filler, np.int32)
            ids[0, :live] = tokens[start : start + live]
            logits = driver.call(
                ids, [slots[index]], tables[index : index + 1], [start], [live], [start == 0]
            )
            outputs[f"prefill {index} {start}"] = logits[0, :live]
    for width, first in ((1, 0), (1, 1), (4, 2)):
        ids = np.full((4, 5 if width > 1 else 1), filler, np.int32)
        for row, index in ((1, 0), (2, 1)):
            at = lengths[index] + first
            ids[row, :width] = sequences[index][at : at + width]
        logits = driver.call(
            ids,
            [SLOTS, slots[0], slots[1], SLOTS + 9],
            np.stack([np.full(3, 12), tables[0], tables[1], tables[0]]),
            [40, lengths[0] + first, lengths[1] + first, 0],
            [0, width, width, 0],
            [False, False, False, True],
        )
        outputs[f"decode {first}"] = logits[1:3, :width]
    for index, length in enumerate(lengths):
        pages = TABLES[index][: -(-(length + 6) // 64)]
        kept = driver.remembered(slots[index], pages, length + 6)
        outputs |= {f"{index} {name}": values for name, values in kept.items()}
    return outputs


@pytest.mark.parametrize("codec", ["f32", "bf16"])
def test_poison_changes_nothing(codec):
    clean = run(small_model(), None, codec, filler=0)
    poisoned = run(poisoned_model(), nan_state(codec), codec, filler=POISON_ID)
    assert clean.keys() == poisoned.keys()
    for name, values in clean.items():
        if values.dtype != np.uint16:
            assert np.isfinite(values).all(), name
        np.testing.assert_array_equal(poisoned[name], values, err_msg=name)


def test_nothing_outside_the_live_rows_is_written():
    """Unused pages and slots still hold the poison afterwards."""
    driver = Driver(poisoned_model(), PAGES, SLOTS, "f32", nan_state("f32"))
    tokens = np.random.RandomState(0).randint(0, ADDRESSABLE, 70)
    driver.feed(tokens, 3, TABLES[0], [(64, 64), (6, 64)])
    for layer in driver.state.layers:
        if hasattr(layer, "keys"):
            for plane in (layer.keys["rows"], layer.values["rows"]):
                live = np.isfinite(np.asarray(plane)).all(axis=(1, 3))  # [P, 64]
                expected = np.zeros_like(live)
                expected[16], expected[2, :6] = True, True
                np.testing.assert_array_equal(live, expected)
        else:
            for array in (layer.recurrent, layer.convolution):
                live = np.isfinite(np.asarray(array)).reshape(SLOTS, -1).all(axis=1)
                np.testing.assert_array_equal(live, np.arange(SLOTS) == 3)


def test_a_nan_does_not_survive_its_sequence():
    """A slot and pages that a failed sequence left full of NaN serve the next one."""
    tokens = np.random.RandomState(5).randint(0, ADDRESSABLE, 64)
    driver = Driver(poisoned_model(), PAGES, SLOTS)
    bad = np.full((1, 64), POISON_ID, np.int32)
    assert np.isnan(driver.call(bad, [2], TABLES[:1], [0], [64], [True])).all()
    logits = driver.feed(tokens, 2, TABLES[0], [(64, 64)])
    expected = Driver(small_model(), PAGES, SLOTS).feed(tokens, 2, TABLES[0], [(64, 64)])
    np.testing.assert_array_equal(logits, expected)


def test_unaddressable_ids_have_no_logit():
    driver = Driver(poisoned_model(), PAGES, SLOTS)
    logits = driver.feed(np.arange(5), 0, TABLES[0], [(5, 64)])
    assert logits.shape == (5, ADDRESSABLE)
