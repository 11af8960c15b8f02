"""Stored objects as arrays of their true types, in the order in which ops read them.

    bf16, fp32, int32     words    the shape of the tensor
    fp8_e4m3fn_row_bf16   codes    float8_e4m3fn [N, K]
                          scales   bfloat16 [N]
    nvfp4                 codes    uint8 [N, K/2], even column in the low nibble
                          scales   float8_e4m3fn [N, K/16], natural order
                          divisor  float32 []
    qB_gG_fp16            base     uint8 [N, 32 groups]: nibble pairs, or 8-bit codes
                          high     uint8 [N, groups G (B - 4) / 8]: bits above bit 3, q5 and q6
                          scales   float16 [N, groups], padded columns included

Arrays view the payload where its order is the same: only the scales of NVFP4 are rearranged.
`payload_chunks` is the inverse, word for word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np

from ninfer_jax.artifact.block_scale import swizzle, unswizzle
from ninfer_jax.artifact.formats import FP8, NVFP4, TENSOR_ALIGNMENT
from ninfer_jax.artifact.row_split import geometry

LAYOUT_VERSION = 1
"""Of everything this file describes; a checkpoint with another number is converted again."""

CHUNK_BYTES = 64 << 20

Shape = tuple[int, ...]
Planes = Mapping[str, np.ndarray]

DIRECT_TYPES = {"bf16": ml_dtypes.bfloat16, "fp32": np.float32, "int32": np.int32}
E4M3 = ml_dtypes.float8_e4m3fn


def plane_spec(format: str, shape: Shape) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of each plane, in the order of the payload."""
    if format in DIRECT_TYPES:
        return {"words": (shape, np.dtype(DIRECT_TYPES[format]))}
    rows, columns = shape
    if format == FP8:
        return {
            "codes": ((rows, columns), np.dtype(E4M3)),
            "scales": ((rows,), np.dtype(ml_dtypes.bfloat16)),
        }
    if format == NVFP4:
        return {
            "codes": ((rows, columns // 2), np.dtype(np.uint8)),
            "scales": ((rows, columns // 16), np.dtype(E4M3)),
            "divisor": ((), np.dtype(np.float32)),
        }
    split = geometry(format, shape)
    split_planes = {"base": ((rows, split.base_row), np.dtype(np.uint8))}
    if split.high_row:
        split_planes["high"] = ((rows, split.high_row), np.dtype(np.uint8))
    return split_planes | {"scales": ((rows, split.groups), np.dtype(np.float16))}


def plane_offsets(format: str, shape: Shape) -> dict[str, tuple[int, int]]:
    """Where each plane begins and ends in the payload of the object.

    FP8 [2, 4]: codes 0 to 8, scales 256 to 260. The NVFP4 divisor follows the scales directly.
    """
    offsets, cursor = {}, 0
    for name, (dims, dtype) in plane_spec(format, shape).items():
        if name != "divisor":
            cursor = -(-cursor // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        begin, cursor = cursor, cursor + math.prod(dims) * dtype.itemsize
        offsets[name] = begin, cursor
    return offsets


def planes(format: str, shape: Shape, payload: np.ndarray) -> Planes:
    """The planes of an object from its payload (uint8)."""
    offsets = plane_offsets(format, shape)
    found = {}
    for name, (dims, dtype) in plane_spec(format, shape).items():
        begin, end = offsets[name]
        words = payload[begin:end]
        if name == "scales" and format == NVFP4:
            words = unswizzle(words, *dims).reshape(-1)
        found[name] = words.view(dtype).reshape(dims)
    return found


def payload_chunks(format: str, shape: Shape, parts: Iterable[Planes]) -> Iterator[np.ndarray]:
    """The payload of an object as consecutive uint8 arrays.

    `parts` are the planes of consecutive blocks of its rows, each but the last of a multiple of
    128 rows (the tiles of the NVFP4 scales), or of the whole object. The first plane is passed on
    block by block; the others, which are smaller, are kept until their turn comes.
    """
    offsets = plane_offsets(format, shape)
    first, *others = offsets
    kept: dict[str, list[np.ndarray]] = {name: [] for name in others}
    for part in parts:
        for name in others:
            kept[name].append(_stored_words(format, name, part[name]))
        yield from _cut(_stored_words(format, first, part[first]))
    cursor = offsets[first][1]
    for name in others:
        begin, end = offsets[name]
        if begin > cursor:
            yield np.zeros(begin - cursor, np.uint8)
        # Every block of an object carries the one divisor.
        chosen = kept.pop(name)
        for words in chosen[:1] if name == "divisor" else chosen:
            yield from _cut(words)
        cursor = end


def _stored_words(format: str, name: str, plane: np.ndarray) -> np.ndarray:
    words = np.ascontiguousarray(plane).reshape(-1).view(np.uint8)
    if name == "scales" and format == NVFP4:
        words = swizzle(words.reshape(plane.shape))
    return words


def _cut(words: np.ndarray) -> Iterator[np.ndarray]:
    for begin in range(0, words.size, CHUNK_BYTES):
        yield words[begin : begin + CHUNK_BYTES]
