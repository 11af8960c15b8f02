"""Fake quantisation: a weight as its storage format represents it, differentiable.

Same rules as the NumPy encoders in `ninfer_jax/artifact/`, up to XLA's flushing of
subnormals; training needs only the neighbourhood of the stored values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

E2M1_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
E2M1_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)


def storage_format(parameter: str) -> str:
    """Format in which the demo profile stores a parameter (v3 identifiers).

    MLP matrices NVFP4; attention, Gated DeltaNet, embedding and head FP8 rows; decay
    parameters f32; everything small BF16. This is the official nvfp4 profile's choice.
    """
    last = parameter.rsplit("/", 1)[-1]
    if "/mlp/" in parameter:
        return "nvfp4"
    if last in ("a_log", "dt_bias"):
        return "fp32"
    if last in ("query", "key", "gate", "value", "z", "output", "token_embedding", "output_head"):
        return "fp8_e4m3fn_row_bf16"
    return "bf16"


def _e4m3(x: jax.Array) -> jax.Array:
    return jnp.clip(x, -448.0, 448.0).astype(jnp.float8_e4m3fn).astype(jnp.float32)


def _nvfp4(x: jax.Array) -> jax.Array:
    divisor = 2688.0 / jnp.maximum(jnp.max(jnp.abs(x)), 1e-30)
    blocks = x.reshape(x.shape[0], -1, 16)
    largest = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
    scale = _e4m3(largest * divisor / 6.0)
    z = jnp.where(scale > 0, blocks * divisor / jnp.where(scale > 0, scale, 1.0), 0.0)
    index = jnp.sum(jnp.abs(z)[..., None] > E2M1_MIDPOINTS, axis=-1)
    value = jnp.sign(z) * jnp.asarray(E2M1_MAGNITUDES)[index] * scale / divisor
    return value.reshape(x.shape)


def _fp8_rows(x: jax.Array) -> jax.Array:
    # The encoder sees BF16 values; the scale of one row in five would be another without this.
    x = x.astype(jnp.bfloat16).astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    scale = jnp.maximum((largest / 448.0).astype(jnp.bfloat16).astype(jnp.float32), 1e-30)
    return _e4m3(x / scale) * scale


def fake_quantize(x: jax.Array, storage: str) -> jax.Array:
    """`x` as `storage` represents it; the gradient is that of the identity."""
    match storage:
        case "nvfp4":
            value = _nvfp4(x)
        case "fp8_e4m3fn_row_bf16":
            value = _fp8_rows(x)
        case "bf16":
            value = x.astype(jnp.bfloat16).astype(jnp.float32)
        case _:
            return x
    return x + jax.lax.stop_gradient(value - x)
