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

Large objects are kept as several blocks of rows, so that nobody has to hold one whole. Arrays view
the payload where its order is the same. `payload_chunks` is the inverse, word for word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np

from ninfer_jax.artifact.block_scale import swizzle, unswizzle
from ninfer_jax.artifact.directory import TensorObject
from ninfer_jax.artifact.formats import FP8, NVFP4, TENSOR_ALIGNMENT
from ninfer_jax.artifact.row_split import geometry

LAYOUT_VERSION = 1
"""Of everything this file describes; a checkpoint with another number is converted again."""

BLOCK_BYTES = 256 << 20
"""Stored bytes of a block at most, as long as a block has at least `BLOCK_ROWS` rows."""

BLOCK_ROWS = 128
"""Blocks begin at multiples of this: the tiles of the NVFP4 scale plane."""

Planes = Mapping[str, np.ndarray]

DIRECT_TYPES = {"bf16": ml_dtypes.bfloat16, "fp32": np.float32, "int32": np.int32}
E4M3 = ml_dtypes.float8_e4m3fn


def blocks(stored: TensorObject) -> list[tuple[int, int]]:
    """Rows `[begin, end)` of each block; a scalar counts as one row.

    FP8 [248320, 5120]: 5,122 bytes a row, 52,352 rows a block, 5 blocks.
    """
    rows = stored.shape[0] if stored.shape else 1
    step = BLOCK_BYTES * rows // stored.bytes // BLOCK_ROWS * BLOCK_ROWS
    step = max(step, BLOCK_ROWS)
    return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


def plane_spec(stored: TensorObject, rows: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of each plane of a block of `rows` rows, in the order of the payload."""
    if stored.format in DIRECT_TYPES:
        shape = (rows, *stored.shape[1:]) if stored.shape else ()
        return {"words": (shape, np.dtype(DIRECT_TYPES[stored.format]))}
    columns = stored.shape[1]
    if stored.format == FP8:
        return {
            "codes": ((rows, columns), np.dtype(E4M3)),
            "scales": ((rows,), np.dtype(ml_dtypes.bfloat16)),
        }
    if stored.format == NVFP4:
        return {
            "codes": ((rows, columns // 2), np.dtype(np.uint8)),
            "scales": ((rows, columns // 16), np.dtype(E4M3)),
            "divisor": ((), np.dtype(np.float32)),
        }
    split = geometry(stored.format, stored.shape)
    planes = {"base": ((rows, split.base_row), np.dtype(np.uint8))}
    if split.high_row:
        planes["high"] = ((rows, split.high_row), np.dtype(np.uint8))
    return planes | {"scales": ((rows, split.groups), np.dtype(np.float16))}


def plane_offsets(stored: TensorObject) -> dict[str, int]:
    """Where each plane begins in the payload of the object.

    FP8 [2, 4]: codes at 0, scales at 256. The NVFP4 divisor follows the scales directly.
    """
    offsets, cursor = {}, 0
    rows = stored.shape[0] if stored.shape else 1
    for name, (shape, dtype) in plane_spec(stored, rows).items():
        if name != "divisor":
            cursor = -(-cursor // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        offsets[name] = cursor
        cursor += int(np.prod(shape)) * dtype.itemsize
    return offsets


def planes(stored: TensorObject, payload: np.ndarray, begin: int, end: int) -> Planes:
    """The planes of rows `[begin, end)`, one of `blocks`, from the object's payload (uint8)."""
    offsets = plane_offsets(stored)
    found = {}
    for name, (shape, dtype) in plane_spec(stored, end - begin).items():
        if name == "divisor" or not shape:
            found[name] = payload[offsets[name] :][: dtype.itemsize].view(dtype).reshape(())
            continue
        row = int(np.prod(shape[1:])) * dtype.itemsize
        words = payload[offsets[name] + begin * row : offsets[name] + end * row]
        if name == "scales" and stored.format == NVFP4:
            words = unswizzle(words, end - begin, row)
        found[name] = words.reshape(-1).view(dtype).reshape(shape)
    return found


def payload_chunks(stored: TensorObject, parts: Iterable[Planes]) -> Iterator[np.ndarray]:
    """The payload of an object as consecutive uint8 arrays, from its blocks in order.

    The first plane is passed on block by block; the others, which are smaller, are kept until
    their turn comes.
    """
    names = list(plane_offsets(stored))
    kept: dict[str, list[np.ndarray]] = {name: [] for name in names[1:]}
    cursor = 0
    for part in parts:
        for name in names[1:]:
            kept[name].append(_stored_words(stored, name, part[name]))
        words = _stored_words(stored, names[0], part[names[0]])
        cursor += words.size
        yield words
    for name in names[1:]:
        gap = plane_offsets(stored)[name] - cursor
        if gap:
            yield np.zeros(gap, np.uint8)
        chosen = kept.pop(name)
        # Every block of an object carries the one divisor.
        chosen = chosen[:1] if name == "divisor" else chosen
        yield from chosen
        cursor += gap + sum(words.size for words in chosen)


def _stored_words(stored: TensorObject, name: str, plane: np.ndarray) -> np.ndarray:
    words = np.ascontiguousarray(plane).reshape(-1).view(np.uint8)
    if name == "scales" and stored.format == NVFP4:
        words = swizzle(words.reshape(plane.shape))
    return words
