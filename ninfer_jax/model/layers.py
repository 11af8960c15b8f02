"""The small blocks: norms, linear maps, embedding, SwiGLU.

Residual stream and activations have the compute type; statistics, products and sums are
f32 and are rounded once at the end of each block.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ninfer_jax.model.weights import MatrixSpec, VectorSpec
from ninfer_jax.pallas.packed_matmul.api import packed_matmul
from ninfer_jax.quantization.weights import dense


def rms_normalize(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """`x * rsqrt(mean(x^2) + eps) * weight` in f32, over the last axis, not rounded."""
    wide = x.astype(jnp.float32)
    variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return wide * jax.lax.rsqrt(variance + eps) * weight


class OffsetNorm(nnx.Module):
    """RMSNorm with the weight stored without its one: `x * rsqrt(...) * (1 + w)`.

    Used for every norm of the decoder and MTP except the output norm of Gated DeltaNet.
    """

    def __init__(self, name: str, width: int, eps: float):
        self.weight = nnx.Param(VectorSpec(name, (width,), "zeros"))
        self.eps = eps

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        weight = 1.0 + self.weight.get_value().astype(jnp.float32)
        return rms_normalize(x, weight, self.eps).astype(x.dtype)


class PlainNorm(nnx.Module):
    """RMSNorm with a plain weight: `x * rsqrt(...) * w`. Returns f32: the caller rounds."""

    def __init__(self, name: str, width: int, eps: float):
        self.weight = nnx.Param(VectorSpec(name, (width,), "ones"))
        self.eps = eps

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return rms_normalize(x, self.weight.get_value().astype(jnp.float32), self.eps)


class Linear(nnx.Module):
    """`y = x W^T` for row blocks that share their input: one call, several outputs."""

    def __init__(self, spec: MatrixSpec):
        self.weight = nnx.Param(spec)
        self.splits = tuple(sum(spec.rows[: i + 1]) for i in range(len(spec.rows) - 1))

    def __call__(self, x: Float[Array, "... K"], out_dtype: jnp.dtype | None = None) -> jax.Array:
        """All row blocks side by side, [..., sum rows]."""
        return packed_matmul(x, self.weight.get_value(), out_dtype)

    def parts(
        self, x: Float[Array, "... K"], out_dtype: jnp.dtype | None = None
    ) -> list[jax.Array]:
        """One output per row block."""
        return jnp.split(self(x, out_dtype), self.splits, axis=-1)


class Embedding(nnx.Module):
    """Token rows of a matrix; the sum is not scaled."""

    def __init__(self, spec: MatrixSpec, dtype: jnp.dtype):
        self.weight = nnx.Param(spec)
        self.dtype = dtype

    def __call__(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        (weight,) = self.weight.get_value()
        matrix = dense(weight, self.dtype)
        rows = matrix.matrix[ids]
        if matrix.scale is None:
            return rows
        return (rows.astype(jnp.float32) * matrix.scale[ids][..., None]).astype(self.dtype)


class SwiGLU(nnx.Module):
    """`down(SiLU(gate x) * up x)`."""

    def __init__(self, prefix: str, width: int, inner: int):
        self.gate_up = Linear(
            MatrixSpec(
                (f"{prefix}/gate", f"{prefix}/up"), (inner, inner), width, ("mlp", "model_width")
            )
        )
        self.down = Linear(MatrixSpec((f"{prefix}/down",), (width,), inner, ("model_width", "mlp")))

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        gate, up = self.gate_up.parts(x)
        product = jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)
        return self.down(product.astype(x.dtype))


def residual_add(x: jax.Array, branch: jax.Array) -> jax.Array:
    """`x + branch` in f32, rounded once."""
    return (x.astype(jnp.float32) + branch.astype(jnp.float32)).astype(x.dtype)
