"""Counter-based random numbers: a pure function of (seed, position, purpose).

Nothing is carried, so batch composition, chunking and replay cannot change a draw. 64-bit
arithmetic modulo 2^64 on two 32-bit limbs, because JAX has no 64-bit integers by default.
"""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp

Limbs = tuple[jax.Array, jax.Array]
"""(high, low) halves of 64-bit numbers, uint32."""


class Purpose(enum.IntEnum):
    """What a draw is for; draws of different purposes are independent."""

    FIRST_TOKEN = 0
    DECODE = 1
    ACCEPT = 2
    CORRECTION = 3
    BONUS = 4
    PROPOSAL = 5


def _constant(value: int) -> Limbs:
    return jnp.uint32(value >> 32), jnp.uint32(value & 0xFFFFFFFF)


def _add(x: Limbs, y: Limbs) -> Limbs:
    low = x[1] + y[1]
    return x[0] + y[0] + (low < x[1]).astype(jnp.uint32), low


def _multiply_32(a: jax.Array, b: jax.Array) -> Limbs:
    """Full 64-bit product of two uint32, from 16-bit halves."""
    mask = jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> 16, a & mask, b >> 16, b & mask
    low = a_low * b_low
    middle = a_high * b_low + (low >> 16)
    other = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> 16) + (other >> 16), (other << 16) | (low & mask)


def _multiply(x: Limbs, y: Limbs) -> Limbs:
    high, low = _multiply_32(x[1], y[1])
    return high + x[0] * y[1] + x[1] * y[0], low


def _xor(x: Limbs, y: Limbs) -> Limbs:
    return x[0] ^ y[0], x[1] ^ y[1]


def _shift_right(x: Limbs, count: int) -> Limbs:
    """For 0 < count < 32."""
    return x[0] >> count, (x[1] >> count) | (x[0] << (32 - count))


def _mix(x: Limbs) -> Limbs:
    x = _add(x, _constant(0x9E3779B97F4A7C15))
    x = _multiply(_xor(x, _shift_right(x, 30)), _constant(0xBF58476D1CE4E5B9))
    x = _multiply(_xor(x, _shift_right(x, 27)), _constant(0x94D049BB133111EB))
    return _xor(x, _shift_right(x, 31))


def uniform(seed: Limbs, position: jax.Array, purpose: Purpose) -> jax.Array:
    """Uniform f32 in [0, 1) with 24 bits.

    Args:
      seed: (high, low) uint32 of any shape.
      position: int32 of the same shape.
      purpose: what the draw is for.
    """
    position = position.astype(jnp.uint32)
    zero = jnp.zeros_like(position)
    key = _mix(_xor(seed, _multiply((zero, position), _constant(0xD1B54A32D192ED03))))
    key = _mix(_xor(key, (zero, zero + jnp.uint32(int(purpose) << 21))))
    # The top 24 bits of the 64: key >> 40 == high >> 8.
    return (key[0] >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
