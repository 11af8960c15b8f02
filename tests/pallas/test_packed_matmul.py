"""`packed_matmul` against float64, over formats, row counts and row segments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.artifact.direct import bfloat16_values
from ninfer_jax.artifact.fp8 import decode_fp8, encode_fp8_rows
from ninfer_jax.artifact.nvfp4 import decode_nvfp4, encode_nvfp4
from ninfer_jax.pallas.packed_matmul.api import packed_matmul
from ninfer_jax.quantization.weights import DenseWeight, Fp8RowWeight, Nvfp4Weight

COLUMNS = 160


def weight(kind: str, rows: int, seed: int = 0):
    """A weight and the values that it denotes."""
    values = np.random.RandomState(seed).randn(rows, COLUMNS).astype(np.float32) / 12
    if kind == "nvfp4":
        fields = dict(zip(("codes", "scales", "divisor"), encode_nvfp4(values), strict=True))
        return Nvfp4Weight(*map(jnp.asarray, fields.values())), decode_nvfp4(fields)
    if kind == "fp8":
        codes, scales = encode_fp8_rows(values)
        stored = Fp8RowWeight(jnp.asarray(codes), jnp.asarray(bfloat16_values(scales)))
        return stored, decode_fp8({"codes": codes, "scales": scales})
    if kind == "scaled":
        scale = np.linspace(0.1, 3, rows, dtype=np.float32)
        return DenseWeight(jnp.asarray(values), jnp.asarray(scale)), values * scale[:, None]
    return DenseWeight(jnp.asarray(values)), values


KINDS = ("dense", "scaled", "fp8", "nvfp4")
run = jax.jit(packed_matmul, static_argnames="out_dtype")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1,), (2,), (1, 1), (3, 5), (64,)])
def test_agrees_with_float64(kind, shape):
    stored, values = weight(kind, 48)
    x = np.random.RandomState(1).randn(*shape, COLUMNS).astype(np.float32)
    y = run(jnp.asarray(x), (stored,))
    assert y.shape == (*shape, 48) and y.dtype == jnp.float32
    np.testing.assert_allclose(y, x.astype(np.float64) @ values.T.astype(np.float64), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_rounds_once(kind):
    """Products of bf16 numbers are summed in f32 and rounded at the end."""
    stored, values = weight(kind, 48)
    if isinstance(stored, DenseWeight):
        stored = stored.replace(matrix=stored.matrix.astype(jnp.bfloat16))
        values = np.asarray(stored.matrix, np.float64)
        values = values if stored.scale is None else values * np.asarray(stored.scale)[:, None]
    x = jnp.asarray(np.random.RandomState(2).randn(4, COLUMNS), jnp.bfloat16)
    exact = np.asarray(x, np.float64) @ values.T.astype(np.float64)
    narrow = run(x, (stored,))
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(narrow, np.float64), exact, rtol=2**-8, atol=1e-5)
    wide = run(x, (stored,), out_dtype=jnp.float32)
    np.testing.assert_allclose(wide, exact, atol=1e-5)


def test_segments_of_several_formats():
    """Row segments keep their own format; outputs stand side by side."""
    parts = [weight(kind, rows, rows) for kind, rows in (("fp8", 16), ("nvfp4", 32), ("dense", 5))]
    x = np.random.RandomState(3).randn(3, COLUMNS).astype(np.float32)
    y = run(jnp.asarray(x), tuple(stored for stored, _ in parts))
    expected = np.concatenate([x @ values.T for _, values in parts], axis=1)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_company(kind):
    """One row is padded to two, so its product rounds like every other."""
    stored, _ = weight(kind, 48)
    x = jnp.asarray(np.random.RandomState(4).randn(64, COLUMNS), jnp.float32)
    whole = np.asarray(run(x, (stored,)))
    for rows in (1, 2, 3, 4, 8, 17):
        np.testing.assert_array_equal(run(x[:rows], (stored,)), whole[:rows])


def test_a_nan_row_stays_alone():
    stored, _ = weight("fp8", 48)
    x = np.random.RandomState(5).randn(4, COLUMNS).astype(np.float32)
    expected = run(jnp.asarray(x), (stored,))
    x[2] = np.nan
    y = np.asarray(run(jnp.asarray(x), (stored,)))
    assert np.isnan(y[2]).all()
    np.testing.assert_array_equal(y[[0, 1, 3]], np.asarray(expected)[[0, 1, 3]])
