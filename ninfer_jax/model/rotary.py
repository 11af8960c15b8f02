"""Partial rotary embedding with three interleaved position axes."""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ninfer_jax.model.config import TextConfig, rotary_axis


@flax.struct.dataclass
class Rotary:
    """Cosines and sines of the columns of one forward call, f32 [B, T, pairs]."""

    cos: jax.Array
    sin: jax.Array


def inverse_frequencies(width: int, theta: float) -> np.ndarray:
    """`theta ** (-2 i / width)` for each pair, rounded to f32 once."""
    exponent = -2.0 * np.arange(width // 2, dtype=np.float64) / width
    return (np.float64(theta) ** exponent).astype(np.float32)


def rotary_angles(config: TextConfig, positions: Int[Array, "3 B T"]) -> Rotary:
    """Angles of each rotary pair from its own position axis, as f32 products.

    The reference multiplies in f32 too, so both have the same error (about 1e-2 rad for the
    fastest pair at position 262,143).
    """
    pairs = config.rotary_width // 2
    axes = np.array([rotary_axis(pair, config.mrope_section) for pair in range(pairs)])
    frequency = inverse_frequencies(config.rotary_width, config.rope_theta)
    by_axis = positions.astype(jnp.float32)[..., None] * frequency
    angle = jnp.where(axes == 1, by_axis[1], jnp.where(axes == 2, by_axis[2], by_axis[0]))
    return Rotary(jnp.cos(angle), jnp.sin(angle))


def rotate(x: Float[Array, "B T H E"], rotary: Rotary) -> Float[Array, "B T H E"]:
    """Rotates the first `2 * pairs` dims of each head in f32; returns f32.

    Pairs are split-half: worked example with 2 pairs, dims (0, 2) and (1, 3) rotate together
    and dims 4.. pass unchanged.
    """
    wide = x.astype(jnp.float32)
    pairs = rotary.cos.shape[-1]
    cos, sin = rotary.cos[:, :, None, :], rotary.sin[:, :, None, :]
    first, second, rest = wide[..., :pairs], wide[..., pairs : 2 * pairs], wide[..., 2 * pairs :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
