"""`y = x W^T` in plain jnp: the semantics of the op, and the CPU path."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ninfer_jax.quantization.weights import Weight, dense

MINIMUM_ROWS = 2
"""Rows a product is padded to. With one bf16 row XLA on CPU converts the whole matrix to f32
in every call, and one-row products round differently from all others."""
WIDE_ROWS = 128
"""From this many rows on, XLA on CPU is faster in f32 (1.25x with 256 rows or more), the
conversion of the matrix included. Both forms add the same exact products in the same order."""


def packed_matmul(
    x: Float[Array, "*rows K"], weight: Weight, out_dtype: jnp.dtype
) -> Float[Array, "*rows N"]:
    """Product with f32 accumulation, the outer scale on the f32 result, then one rounding."""
    matrix = dense(weight, x.dtype)
    flat = x.reshape(-1, x.shape[-1])
    rows = flat.shape[0]
    if rows < MINIMUM_ROWS:
        flat = jnp.pad(flat, ((0, MINIMUM_ROWS - rows), (0, 0)))
    if rows >= WIDE_ROWS and x.dtype == jnp.bfloat16:
        y = jax.lax.platform_dependent(flat, matrix.matrix, cpu=_wide_product, default=_product)
    else:
        y = _product(flat, matrix.matrix)
    if matrix.scale is not None:
        y = y * matrix.scale
    return y[:rows].astype(out_dtype).reshape(*x.shape[:-1], -1)


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return jax.lax.dot_general(
        x,
        matrix,
        (((1,), (1,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _wide_product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return _product(x.astype(jnp.float32), matrix.astype(jnp.float32))
