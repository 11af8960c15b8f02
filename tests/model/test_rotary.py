"""Rotary embedding: published frequencies, axis pattern, worked rotation."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.artifact.published_configs import text_config as published_text_config
from ninfer_jax.model.config import rotary_axis, text_config
from ninfer_jax.model.rotary import Rotary, inverse_frequencies, rotary_angles, rotate
from tests.model.building import small_model
from tests.model.oracle import rotate as oracle_rotate


def test_published_frequencies():
    frequency = inverse_frequencies(64, 1e7)
    assert frequency.dtype == np.float32 and frequency.shape == (32,)
    assert frequency[0] == 1.0
    assert frequency[1] == pytest.approx(0.60429639, rel=1e-7)
    assert frequency[31] == pytest.approx(1.6548171e-7, rel=1e-7)


def test_axis_pattern():
    """Time, height, width, ... for 30 pairs, then time, height: 11, 11 and 10 pairs."""
    axes = [rotary_axis(pair, (11, 11, 10)) for pair in range(32)]
    assert axes == [0, 1, 2] * 10 + [0, 1]
    assert [axes.count(axis) for axis in range(3)] == [11, 11, 10]
    assert [rotary_axis(pair, (3, 3, 2)) for pair in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_angles_take_each_pair_from_its_axis():
    config = text_config(published_text_config(), 248077)
    positions = jnp.asarray([1000, 20, 3], jnp.int32)[:, None, None]
    angles = rotary_angles(config, positions)
    axes = np.array([0, 1, 2] * 10 + [0, 1])
    expected = np.array([1000, 20, 3])[axes] * (1e7 ** (-np.arange(32) / 32.0))
    np.testing.assert_allclose(angles.cos[0, 0], np.cos(expected), atol=1e-4)
    np.testing.assert_allclose(angles.sin[0, 0], np.sin(expected), atol=1e-4)


def test_pairs_are_split_half():
    quarter = Rotary(jnp.asarray([[[0.0, 1.0]]]), jnp.asarray([[[1.0, 0.0]]]))
    x = jnp.arange(1.0, 7.0).reshape(1, 1, 1, 6)
    # Pair 0 is dims (0, 2), a quarter turn: (1, 3) -> (-3, 1); pair 1 and dims 4, 5 stay.
    np.testing.assert_array_equal(rotate(x, quarter).ravel(), [-3, 2, 1, 4, 5, 6])


def test_rotation_agrees_with_float64():
    config = small_model().config
    random = np.random.RandomState(0)
    x = random.randn(1, 7, 6, 32)
    positions = random.randint(0, 300, (3, 7))
    rope = {
        "partial_rotary_factor": 0.5,
        "rope_theta": config.rope_theta,
        "mrope_section": config.mrope_section,
    }
    ours = rotate(
        jnp.asarray(x, jnp.float32), rotary_angles(config, jnp.asarray(positions)[:, None])
    )
    np.testing.assert_allclose(ours[0], oracle_rotate(x[0], positions, rope), atol=1e-4)
    assert not np.allclose(ours[..., :16], x[..., :16])
    np.testing.assert_array_equal(ours[..., 16:], x[..., 16:].astype(np.float32))


@pytest.mark.parametrize("position", [0, 1, 4095, 65535])
def test_text_has_equal_axes(position):
    """With one position on all axes the pattern is plain rotary embedding."""
    config = small_model().config
    angles = rotary_angles(config, jnp.full((3, 1, 1), position))
    expected = np.float32(position) * inverse_frequencies(16, 1e7)
    np.testing.assert_allclose(angles.cos[0, 0], np.cos(expected.astype(np.float64)), atol=1e-6)
