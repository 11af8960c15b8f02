"""Rows of arrays that a slot keeps, `[slots, ...]`: how they are stored, read and written.

16-bit floats are stored as bit patterns: on the oldest supported jax, XLA on CPU scatters them by
converting the whole array to f32 and back.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

_BITS = jnp.dtype(jnp.uint16)
_FLOAT = jnp.dtype(jnp.bfloat16)


def kept_spec(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
    """The array for numbers of `dtype`."""
    return jax.ShapeDtypeStruct(shape, _BITS if jnp.dtype(dtype) == _FLOAT else dtype)


def take_rows(kept: Array, slots: Int[Array, "B"]) -> Array:
    """The rows of some slots; zeros for a slot out of range."""
    rows = kept.at[slots].get(mode="fill", fill_value=0)
    return jax.lax.bitcast_convert_type(rows, _FLOAT) if rows.dtype == _BITS else rows


def put_rows(kept: Array, rows: Array, *place: Array | int) -> Array:
    """`kept` with `rows` at `place`: slots (those out of range are dropped), then indices."""
    if kept.dtype == _BITS:
        rows = jax.lax.bitcast_convert_type(rows.astype(_FLOAT), _BITS)
    return kept.at[place].set(rows.astype(kept.dtype), mode="drop")
