"""`y = x W^T` in plain jnp: the semantics of the op, and the CPU path."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ninfer_jax.quantization.weights import Weight, dense

MINIMUM_ROWS = 2
"""Rows a product is padded to. With one bf16 row XLA on CPU converts the whole matrix to f32
in every call, and one-row products round differently from all others."""


def packed_matmul(
    x: Float[Array, "*rows K"], weight: Weight, out_dtype: jnp.dtype
) -> Float[Array, "*rows N"]:
    """Product with f32 accumulation, the outer scale on the f32 result, then one rounding."""
    matrix = dense(weight, x.dtype)
    flat = x.reshape(-1, x.shape[-1])
    rows = flat.shape[0]
    if rows < MINIMUM_ROWS:
        flat = jnp.pad(flat, ((0, MINIMUM_ROWS - rows), (0, 0)))
    y = jax.lax.dot_general(
        flat,
        matrix.matrix,
        (((1,), (1,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    if matrix.scale is not None:
        y = y * matrix.scale
    return y[:rows].astype(out_dtype).reshape(*x.shape[:-1], -1)
