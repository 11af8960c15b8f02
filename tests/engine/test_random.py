"""The counter-based generator: published values, a 64-bit oracle, independence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.engine.random import Purpose, uniform

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def oracle(seed: int, position: int, purpose: int) -> float:
    """The definition, in Python integers."""
    key = mix(seed ^ ((position & 0xFFFFFFFF) * 0xD1B54A32D192ED03 & MASK))
    return (mix(key ^ (purpose << 21)) >> 40) / 2**24


def draw(seeds, positions, purpose: Purpose) -> np.ndarray:
    seeds = [int(seed) for seed in seeds]
    limbs = tuple(
        jnp.asarray([(seed >> shift) & 0xFFFFFFFF for seed in seeds], jnp.uint32)
        for shift in (32, 0)
    )
    run = jax.jit(uniform, static_argnums=2)
    return np.asarray(run(limbs, jnp.asarray(positions, jnp.int32), purpose))


PUBLISHED = [
    (0, 0, 0, 0.6524484754),
    (0, 1, 1, 0.9897125959),
    (42, 100, 1, 0.5257862210),
    (42, 100, 2, 0.1938694119),
    (42, 100, 3, 0.5376077890),
    (42, 100, 4, 0.5720574260),
    (42, 100, 5, 0.2353919744),
    (123456789, 262143, 5, 0.5227978230),
]


@pytest.mark.parametrize(("seed", "position", "purpose", "expected"), PUBLISHED)
def test_published_values(seed, position, purpose, expected):
    assert oracle(seed, position, purpose) == pytest.approx(expected, abs=5e-11)
    value = float(draw([seed], [position], Purpose(purpose))[0])
    assert value == pytest.approx(expected, abs=5e-11)


@pytest.mark.parametrize("purpose", Purpose)
def test_every_bit_agrees_with_64_bit_integers(purpose):
    random = np.random.RandomState(int(purpose))
    seeds = [int.from_bytes(random.bytes(8), "big") for _ in range(200)]
    seeds += [0, MASK, 1 << 63, 1 << 32, (1 << 32) - 1]
    positions = random.randint(0, 262_144, len(seeds))
    expected = [oracle(s, int(p), int(purpose)) for s, p in zip(seeds, positions, strict=True)]
    np.testing.assert_array_equal(draw(seeds, positions, purpose), np.float32(expected))


def test_values_lie_in_the_half_open_interval():
    values = draw([7] * 20_000, np.arange(20_000), Purpose.DECODE)
    assert values.min() >= 0 and values.max() < 1
    np.testing.assert_array_equal(values * 2**24, np.floor(values * 2**24))


def test_the_values_are_uniform():
    """Chi-square over 64 cells; the seed is fixed, the limit is the 99.99 % quantile."""
    values = draw([20_260_101] * 64_000, np.arange(64_000), Purpose.DECODE)
    counts = np.bincount((values * 64).astype(int), minlength=64)
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 113.5


def test_purposes_and_positions_are_independent():
    """No correlation between streams that share everything but one key."""
    positions = np.arange(20_000)
    streams = [draw([3] * 20_000, positions, purpose) for purpose in Purpose]
    streams.append(draw([3] * 20_000, positions + 1, Purpose.DECODE))
    streams.append(draw([4] * 20_000, positions, Purpose.DECODE))
    streams[-2] = np.roll(streams[-2], 3)  # else it is the decode stream shifted by one
    correlation = np.corrcoef(streams)
    assert np.abs(correlation - np.eye(len(streams))).max() < 0.035
