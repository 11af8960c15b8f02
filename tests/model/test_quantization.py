"""Stored formats in jnp against the NumPy encoders and decoders of the artifact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.artifact.direct import bfloat16_values
from ninfer_jax.artifact.fp8 import decode_fp8, encode_fp8_rows
from ninfer_jax.artifact.nvfp4 import decode_nvfp4, encode_nvfp4
from ninfer_jax.quantization.fake import fake_quantize, storage_format
from ninfer_jax.quantization.kv import CODECS
from ninfer_jax.quantization.weights import (
    Fp8RowWeight,
    Nvfp4Weight,
    dense,
    e2m1_to_twice_int,
    materialize,
)


def matrices() -> dict[str, np.ndarray]:
    random = np.random.RandomState(0)
    rough = random.randn(96, 64) * np.exp(random.uniform(-6, 3, (96, 1)))
    rough[5] = 0
    rough[:, 16:32] = 0
    return {
        "normal": random.randn(128, 96).astype(np.float32) / 10,
        "heavy": (random.standard_t(2, (64, 128)) / 50).astype(np.float32),
        "rough": rough.astype(np.float32),
    }


MATRICES = matrices()


def nvfp4_weight(x: np.ndarray) -> tuple[Nvfp4Weight, np.ndarray]:
    codes, scales, divisor = encode_nvfp4(x)
    values = decode_nvfp4({"codes": codes, "scales": scales, "divisor": divisor})
    return Nvfp4Weight(*map(jnp.asarray, (codes, scales, divisor))), values


def fp8_weight(x: np.ndarray) -> tuple[Fp8RowWeight, np.ndarray]:
    codes, scales = encode_fp8_rows(x)
    values = decode_fp8({"codes": codes, "scales": scales})
    return Fp8RowWeight(jnp.asarray(codes), jnp.asarray(bfloat16_values(scales))), values


PACKED = {"nvfp4": nvfp4_weight, "fp8_e4m3fn_row_bf16": fp8_weight}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("storage", PACKED)
def test_packed_weights_are_exact(name, storage):
    weight, values = PACKED[storage](MATRICES[name])
    assert weight.shape == values.shape
    np.testing.assert_array_equal(jax.jit(materialize)(weight), values)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("storage", PACKED)
def test_dense_is_exact_in_bf16(name, storage):
    """The inner matrix has no rounding in bf16; the outer scale is kept apart."""
    weight, values = PACKED[storage](MATRICES[name])
    narrow, wide = dense(weight, jnp.dtype(jnp.bfloat16)), dense(weight, jnp.dtype(jnp.float32))
    np.testing.assert_array_equal(narrow.matrix.astype(jnp.float32), wide.matrix)
    product = np.asarray(wide.matrix, np.float64) * np.asarray(wide.scale, np.float64)[:, None]
    # 1 / divisor is rounded once more than the division that NVFP4 defines.
    np.testing.assert_allclose(product, values, rtol=2e-7, atol=0)


def test_every_e2m1_code():
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    twice = e2m1_to_twice_int(jnp.arange(16, dtype=jnp.uint8))
    np.testing.assert_array_equal(twice, 2 * np.array(values))


def test_every_scale_byte_of_nvfp4():
    """All 127 legal scales, subnormal ones included, times all 16 codes."""
    scales = np.repeat(np.arange(127, dtype=np.uint8)[:, None], 2, axis=1)
    codes = np.tile(np.arange(16, dtype=np.uint8) * 17, (127, 1))
    fields = {"codes": codes, "scales": scales, "divisor": np.float32(3.7)}
    weight = Nvfp4Weight(*map(jnp.asarray, fields.values()))
    np.testing.assert_array_equal(jax.jit(materialize)(weight), decode_nvfp4(fields))


def test_every_code_of_fp8():
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)[None]
    weight = Fp8RowWeight(jnp.asarray(codes), jnp.ones(1))
    expected = decode_fp8({"codes": codes, "scales": np.array([0x3F80], np.uint16)})
    np.testing.assert_array_equal(jax.jit(materialize)(weight), expected)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("storage", PACKED)
def test_fake_quantisation_is_what_will_be_stored(name, storage):
    """Nearly every element is the stored one; the rest lies one step beside it.

    The encoders round ties and reciprocals in their own way, so a value in the middle of
    two steps may go to the other one.
    """
    x = MATRICES[name]
    fake = np.asarray(jax.jit(fake_quantize, static_argnums=1)(jnp.asarray(x), storage))
    _, stored = PACKED[storage](x)
    other = ~np.isclose(fake, stored, rtol=1e-6, atol=1e-12)
    print(name, storage, f"{other.mean():.3%} differ")
    assert other.mean() < 0.002
    # The widest step of a row is 2 of 6 (E2M1) or 32 of 448 (E4M3) of its largest number.
    step = np.abs(x).max(axis=1, keepdims=True) / (2.9 if storage == "nvfp4" else 13.9)
    assert (np.abs(fake - stored)[other] <= np.broadcast_to(step, x.shape)[other]).all()


def test_fake_quantisation_has_the_gradient_of_the_identity():
    x = jnp.asarray(MATRICES["normal"])
    for storage in (*PACKED, "bf16", "fp32"):
        gradient = jax.grad(lambda x, storage=storage: jnp.sum(fake_quantize(x, storage) ** 1))(x)
        np.testing.assert_array_equal(gradient, jnp.ones_like(x))


def test_small_formats():
    x = jnp.asarray(MATRICES["normal"])
    np.testing.assert_array_equal(fake_quantize(x, "fp32"), x)
    rounded = x.astype(jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_allclose(fake_quantize(x, "bf16"), rounded, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("parameter", "storage"),
    [
        ("text/layers/0/mlp/gate", "nvfp4"),
        ("text/layers/0/mlp/down", "nvfp4"),
        ("text/layers/0/gdn/a_log", "fp32"),
        ("text/layers/0/gdn/dt_bias", "fp32"),
        ("text/layers/0/gdn/query", "fp8_e4m3fn_row_bf16"),
        ("text/layers/0/gdn/a_projection", "bf16"),
        ("text/layers/0/gdn/convolution", "bf16"),
        ("text/layers/3/attention/output", "fp8_e4m3fn_row_bf16"),
        ("text/layers/3/attention/query_norm", "bf16"),
        ("text/token_embedding", "fp8_e4m3fn_row_bf16"),
        ("text/output_head", "fp8_e4m3fn_row_bf16"),
        ("text/final_norm", "bf16"),
    ],
)
def test_storage_formats(parameter, storage):
    assert storage_format(parameter) == storage


@pytest.mark.parametrize("name", CODECS)
def test_kv_codecs_keep_what_they_store(name):
    """Decode of encode is the identity on what the codec can represent."""
    codec = CODECS[name]
    rows = jnp.asarray(MATRICES["heavy"])
    planes = codec.encode(rows)
    described = codec.planes(rows.shape[-1])
    assert {key: (plane.shape[-1], plane.dtype) for key, plane in planes.items()} == described
    once = codec.decode(planes)
    assert once.dtype == jnp.float32
    np.testing.assert_array_equal(codec.decode(codec.encode(once)), once)
    np.testing.assert_allclose(once, rows, rtol=2**-8)
