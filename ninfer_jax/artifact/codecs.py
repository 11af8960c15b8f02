"""Objects by format: encoded size, packing, unpacking, decoding, fusion and scanning.

Fields are numpy arrays in natural row order:

    bf16, fp32, int32     words: uint16, float32, int32, in the shape of the tensor
    fp8_e4m3fn_row_bf16   codes uint8 [N, K], scales uint16 (BF16 bits) [N]
    nvfp4                 codes uint8 [N, K/2], scales uint8 [N, K/16], divisor float32 []
    qB_gG_fp16            codes int8 [N, K], scales uint16 (binary16 bits) [N, ceil(K/G)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ninfer_jax.artifact import block_scale, contiguous, row_scale, row_split
from ninfer_jax.artifact.direct import decode_direct
from ninfer_jax.artifact.formats import (
    BLOCK_SCALE,
    CONTIGUOUS,
    DIRECT_FORMATS,
    FORMATS,
    FP8,
    NVFP4,
    ROW_SCALE,
    ROW_SPLIT,
)
from ninfer_jax.artifact.fp8 import check_fp8, decode_fp8
from ninfer_jax.artifact.grouped import check_grouped, decode_grouped
from ninfer_jax.artifact.nvfp4 import check_nvfp4, decode_nvfp4
from ninfer_jax.errors import ArtifactError

Fields = dict[str, np.ndarray]

_LAYOUTS = {
    CONTIGUOUS: contiguous,
    ROW_SPLIT: row_split,
    ROW_SCALE: row_scale,
    BLOCK_SCALE: block_scale,
}


def _layout_of(format: str):
    if format not in FORMATS:
        raise ArtifactError(f"unknown format {format!r}, expected one of {', '.join(FORMATS)}")
    return _LAYOUTS[FORMATS[format].layout]


def encoded_bytes(format: str, shape: Sequence[int]) -> int:
    """Bytes that a tensor occupies; raises `ArtifactError` for a format or shape that cannot be."""
    return _layout_of(format).encoded_bytes(format, tuple(shape))


def pack_object(format: str, fields: Fields, shape: Sequence[int]) -> bytes:
    """Return the payload of one object; raises ValueError when the fields do not fit the shape."""
    _layout_of(format).encoded_bytes(format, tuple(shape))
    return _layout_of(format).pack(format, fields, tuple(shape))


def unpack_object(format: str, shape: Sequence[int], payload) -> Fields:
    """Return the natural fields of a whole object from its bytes (any buffer)."""
    shape = tuple(shape)
    fields = unpack_elements(format, shape, payload, 0, math.prod(shape))
    if format in DIRECT_FORMATS:
        fields["words"] = fields["words"].reshape(shape)
    return fields


def unpack_elements(format: str, shape: tuple[int, ...], payload, begin: int, end: int) -> Fields:
    """Return the fields of the C-order elements `[begin, end)` of one object.

    Direct formats give flat words. Packed formats are cut at whole rows only: for K columns,
    `begin` and `end` are multiples of K. Raises `ArtifactError` for any other range and for a
    payload of the wrong size.
    """
    layout = _layout_of(format)
    expected = layout.encoded_bytes(format, shape)
    data = np.frombuffer(payload, np.uint8)
    if data.size != expected:
        raise ArtifactError(
            f"{format} {list(shape)}: payload has {data.size} bytes, expected {expected}"
        )
    if format in DIRECT_FORMATS:
        return layout.unpack(format, shape, data, begin, end)
    columns = shape[1]
    if begin % columns or end % columns:
        raise ArtifactError(
            f"{format}: elements [{begin}, {end}) do not begin and end at rows of {columns} columns"
        )
    return layout.unpack(format, shape, data, begin // columns, end // columns)


def decode_fields(format: str, fields: Fields) -> np.ndarray:
    """Return the values that the fields denote: float32, or int32 for `int32`."""
    if format in DIRECT_FORMATS:
        return decode_direct(format, fields)
    if format == FP8:
        return decode_fp8(fields)
    if format == NVFP4:
        return decode_nvfp4(fields)
    return decode_grouped(format, fields)


def fuse_rows(format: str, parts: Sequence[Fields]) -> Fields:
    """Concatenate natural rows of one format into the fields of their fused parent.

    Scales go with their rows. Raises `ArtifactError` when NVFP4 parts differ in their divisor,
    which a single object cannot hold, or when the parts differ in columns.
    """
    if len(parts) == 1:
        return dict(parts[0])
    fused: Fields = {}
    for field, first in parts[0].items():
        arrays = [part[field] for part in parts]
        if field == "divisor":
            words = {np.asarray(array, np.float32).tobytes() for array in arrays}
            if len(words) > 1:
                listed = ", ".join(f"{float(array):.9g}" for array in arrays)
                raise ArtifactError(f"{format}: rows with different divisors ({listed}) can't fuse")
            fused[field] = first
            continue
        trailing = {array.shape[1:] for array in arrays}
        if len(trailing) > 1:
            raise ArtifactError(f"{format}: rows of different widths {sorted(trailing)} can't fuse")
        fused[field] = np.concatenate(arrays)
    return fused


def check_fields(format: str, fields: Fields, name: str) -> None:
    """Scan every word of an object; `ArtifactError` names the object and the first bad row."""
    if format == FP8:
        check_fp8(fields, name)
    elif format == NVFP4:
        check_nvfp4(fields, name)
    elif format not in DIRECT_FORMATS:
        check_grouped(format, fields, name)
