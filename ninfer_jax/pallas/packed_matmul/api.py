"""The op `packed_matmul`: what the model calls."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ninfer_jax.pallas.packed_matmul import reference
from ninfer_jax.quantization.weights import Weight


def packed_matmul(
    x: jax.Array, weights: tuple[Weight, ...], out_dtype: jnp.dtype | None = None
) -> jax.Array:
    """`x W^T` for a weight stored as row segments of one or several formats.

    Args:
      x: [..., K] activations.
      weights: row segments [N_i, K]; their outputs are concatenated.
      out_dtype: type of the result; the type of `x` if None.

    Returns:
      [..., sum N_i].
    """
    out_dtype = x.dtype if out_dtype is None else out_dtype
    with jax.named_scope("packed_matmul"):
        parts = [reference.packed_matmul(x, weight, out_dtype) for weight in weights]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
