"""Weights as pytrees: what a linear layer holds, and how it becomes numbers.

A weight is `W [N, K]`; a layer computes `y = x W^T`. Each class is one stored format of
`docs/artifact.md` section 2 with its fields in natural order, so that the same description
serves CPU (dense, dequantised once at load) and GPU kernels (packed words).
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class DenseWeight:
    """`W = scale[:, None] * matrix`.

    Attributes:
      matrix: [N, K], the compute type (bf16 or f32).
      scale: [N] f32 applied to the output row, or None for 1. Keeping the scale of NVFP4
        (1 / divisor) and FP8 (row scale) outside makes `matrix` exact in bf16.
    """

    matrix: jax.Array
    scale: jax.Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.matrix.shape


@flax.struct.dataclass
class Nvfp4Weight:
    """`W = e2m1(codes) * e4m3(scales) / divisor`.

    Attributes:
      codes: uint8 [N, K/2], even column in the low nibble.
      scales: uint8 [N, K/16], E4M3FN bits in natural (row, group) order.
      divisor: f32 [].
    """

    codes: jax.Array
    scales: jax.Array
    divisor: jax.Array

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape[0], 2 * self.codes.shape[1]


@flax.struct.dataclass
class Fp8RowWeight:
    """`W = e4m3(codes) * scales[:, None]`.

    Attributes:
      codes: uint8 [N, K], E4M3FN bits.
      scales: f32 [N] (the stored BF16 multiplier, widened).
    """

    codes: jax.Array
    scales: jax.Array

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape


Weight = DenseWeight | Nvfp4Weight | Fp8RowWeight


def e2m1_to_twice_int(nibbles: jax.Array) -> jax.Array:
    """Twice the E2M1 value of each nibble as int32, in {0, 1, 2, 3, 4, 6, 8, 12} with sign.

    Small integers instead of an exponent trick: XLA on CPU flushes subnormals, which turns
    the usual bit pattern for 0.5 into 0. Worked example: nibble 0b0101 (3.0): exponent field
    2, mantissa 1 -> (2 + 1) << (2 - 1) = 6 = 2 * 3.0.
    """
    code = nibbles.astype(jnp.int32)
    exponent = (code >> 1) & 3
    mantissa = code & 1
    magnitude = jnp.where(exponent == 0, mantissa, (2 + mantissa) << jnp.maximum(exponent - 1, 0))
    return jnp.where(code & 8, -magnitude, magnitude)


def e4m3_to_float(bits: jax.Array) -> jax.Array:
    """E4M3FN bit patterns (uint8) as f32."""
    return jax.lax.bitcast_convert_type(bits, jnp.float8_e4m3fn).astype(jnp.float32)


def dense(weight: Weight, dtype: jnp.dtype) -> DenseWeight:
    """The weight as a dense matrix of `dtype` with the outer scale kept apart.

    Exact for bf16: an E2M1 value times an E4M3 scale has at most 6 significant bits, an
    E4M3 value has 4.
    """
    if isinstance(weight, DenseWeight):
        return DenseWeight(weight.matrix.astype(dtype), weight.scale)
    if isinstance(weight, Fp8RowWeight):
        return DenseWeight(e4m3_to_float(weight.codes).astype(dtype), weight.scales)
    rows, columns = weight.shape
    low = e2m1_to_twice_int(weight.codes & 15)
    high = e2m1_to_twice_int(weight.codes >> 4)
    twice = jnp.stack([low, high], axis=-1).reshape(rows, columns).astype(jnp.float32)
    block = jnp.repeat(e4m3_to_float(weight.scales) * 0.5, 16, axis=1)
    scale = jnp.full((rows,), 1.0, jnp.float32) / weight.divisor
    return DenseWeight((twice * block).astype(dtype), scale)


def materialize(weight: Weight) -> jax.Array:
    """The weight's values as f32 [N, K], for oracles and exports (not for serving)."""
    as_dense = dense(weight, jnp.float32)
    if as_dense.scale is None:
        return as_dense.matrix
    if isinstance(weight, Nvfp4Weight):
        # A division, not a product with the reciprocal: that is what the format defines. The
        # barrier keeps XLA from making a product of it.
        divisor = jnp.broadcast_to(weight.divisor, as_dense.matrix.shape)
        return as_dense.matrix / jax.lax.optimization_barrier(divisor)
    return as_dense.matrix * as_dense.scale[:, None]
