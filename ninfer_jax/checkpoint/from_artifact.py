"""Loads the weights of a decoder from a `.ninfer` artifact.

Walks the tree of weight specs: each names its artifact parameters, so loading needs no
table of its own. On CPU every matrix is dequantised once to the compute type with its outer
scale kept apart; on other devices NVFP4 and FP8 stay packed.
"""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ninfer_jax.artifact.bindings import StoredTensor
from ninfer_jax.artifact.reader import Artifact
from ninfer_jax.checkpoint.names import spec_parts
from ninfer_jax.errors import ArtifactError
from ninfer_jax.model.weights import MatrixSpec, Spec, VectorSpec, is_spec
from ninfer_jax.quantization.weights import DenseWeight, Fp8RowWeight, Nvfp4Weight, Weight

FP8 = "fp8_e4m3fn_row_bf16"
NVFP4 = "nvfp4"

Placement = Literal["dense", "packed"]
"""How matrices are held: dequantised for CPU, or in their stored words."""

E4M3_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
E2M1_VALUES = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
)


def _bf16_values(words: np.ndarray) -> np.ndarray:
    return words.view(ml_dtypes.bfloat16).astype(np.float32)


def dense_segment(stored: StoredTensor, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """A stored matrix as (matrix of `dtype` [N, K], outer scale f32 [N]).

    Exact for NVFP4 and FP8 when `dtype` is bf16 or wider: the inner numbers have at most 6
    significant bits. Grouped integers are rounded to `dtype` once.
    """
    rows = stored.shape[0]
    fields = stored.words()
    if stored.format == FP8:
        return E4M3_VALUES[fields["codes"]].astype(dtype), _bf16_values(fields["scales"])
    if stored.format == NVFP4:
        codes = fields["codes"]
        value = np.empty((rows, stored.shape[1]), np.float32)
        value[:, 0::2] = E2M1_VALUES[codes & 15]
        value[:, 1::2] = E2M1_VALUES[codes >> 4]
        value *= np.repeat(E4M3_VALUES[fields["scales"]], 16, axis=1)
        scale = np.full(rows, np.float32(1.0) / fields["divisor"], np.float32)
        return value.astype(dtype), scale
    return stored.decode().astype(dtype), np.ones(rows, np.float32)


def packed_segment(stored: StoredTensor, dtype: np.dtype) -> Weight:
    """A stored matrix in its own words; formats without a packed form become dense.

    Words that are on a device already (a converted checkpoint) stay there.
    """
    if stored.format == FP8:
        fields = stored.words()
        return Fp8RowWeight(fields["codes"], _bf16_values(np.asarray(fields["scales"])))
    if stored.format == NVFP4:
        fields = stored.words()
        return Nvfp4Weight(fields["codes"], fields["scales"], np.float32(fields["divisor"]))
    matrix, _ = dense_segment(stored, dtype)
    return DenseWeight(matrix)


def _same_storage(first: Weight, second: Weight) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, Nvfp4Weight):
        return first.divisor == second.divisor
    return True


def _stack(first: Weight, second: Weight) -> Weight:
    """Rows of the second below the rows of the first, of one format."""
    if isinstance(first, Nvfp4Weight):
        return Nvfp4Weight(
            _rows(first.codes, second.codes), _rows(first.scales, second.scales), first.divisor
        )
    return jax.tree.map(_rows, first, second)


def _rows(first: np.ndarray | jax.Array, second: np.ndarray | jax.Array):
    if isinstance(first, jax.Array) or isinstance(second, jax.Array):
        return jnp.concatenate([first, second])
    shape = (first.shape[0] + second.shape[0], *first.shape[1:])
    return np.concatenate([first, second], out=aligned_empty(shape, first.dtype))


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory that a CPU device takes over uncopied: it wants 64-byte alignment, NumPy gives 16."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 63, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)


def load_matrix(
    artifact: Artifact, spec: MatrixSpec, dtype: np.dtype, placement: Placement
) -> tuple[Weight, ...]:
    """The weight of one linear map: one dense matrix, or as few packed ones as formats allow."""
    stored = [
        artifact.parameter(name, (rows, spec.columns))
        for name, rows in zip(spec.names, spec.rows, strict=True)
    ]
    if placement == "dense":
        parts = [dense_segment(part, dtype) for part in stored]
        matrix = np.concatenate([matrix for matrix, _ in parts])
        scale = np.concatenate([scale for _, scale in parts])
        return (DenseWeight(matrix, None if np.all(scale == 1.0) else scale),)
    segments: list[Weight] = []
    for part in stored:
        segment = packed_segment(part, dtype)
        if segments and _same_storage(segments[-1], segment):
            segments[-1] = _stack(segments[-1], segment)
        else:
            segments.append(segment)
    return tuple(segments)


def load_vector(artifact: Artifact, spec: VectorSpec, dtype: np.dtype) -> np.ndarray:
    """A small parameter in f32 if it must keep full precision, else in the compute type."""
    stored = artifact.parameter(spec.name, spec.shape)
    if stored.format not in ("bf16", "fp32"):
        raise ArtifactError(
            f"{spec.name} is stored as {stored.format}, which this version cannot use; "
            "expected bf16 or fp32"
        )
    return stored.decode().astype(np.float32 if spec.full_precision else dtype)


def load_weights(
    artifact: Artifact,
    specs: dict,
    dtype: jnp.dtype,
    placement: Placement,
    sharding: jax.sharding.Sharding,
) -> dict:
    """The tree of weights for a tree of specs, on the device, one spec at a time.

    Raises:
      ArtifactError: a parameter is missing, has another shape, or an unusable format.
    """
    numpy_type = np.dtype(dtype)
    leaves = jax.tree.leaves(specs, is_leaf=is_spec)
    artifact.prepare(name for spec in leaves for name, _ in spec_parts(spec))

    def load(spec: Spec):
        if isinstance(spec, MatrixSpec):
            value = load_matrix(artifact, spec, numpy_type, placement)
        else:
            value = load_vector(artifact, spec, numpy_type)
        # Nobody writes to what was read, so host memory need not be copied for a CPU device.
        return jax.device_put(value, sharding, may_alias=True)

    weights = jax.tree.map(load, specs, is_leaf=is_spec)
    artifact.prepare(())
    return weights
