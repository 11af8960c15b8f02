"""Layout `row_split_k128_v1`: grouped integers as three planes: base codes, high bits, scales.

Columns are padded to a multiple of 128. In each plane the groups of row 0 come first, then those of
row 1. Base plane: 32 bytes a group (4-bit lanes in pairs, even column in the low nibble; 8-bit
codes plain). High plane, q5 and q6 only: bits above bit 3, lowest first, lanes in order, packed
LSB first. Scale plane: binary16 words. Planes start at multiples of 256; gaps are zero.

q5 [2, 130]: 256 padded columns, 4 groups a row; base 256 bytes at 0, high 64 bytes at 256, scales
16 bytes at 512; 528 bytes in all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_jax.artifact.assemble import assembled
from ninfer_jax.artifact.bit_planes import (
    high_bits,
    lanes_of_high_bits,
    lanes_of_low_bits,
    low_bits,
)
from ninfer_jax.artifact.blocks import for_each_block
from ninfer_jax.artifact.formats import TENSOR_ALIGNMENT
from ninfer_jax.artifact.grouped import GROUPED, groups_per_row
from ninfer_jax.errors import ArtifactError

BASE_BYTES = 32


@dataclass(frozen=True)
class RowSplitGeometry:
    """Plane offsets and per-row sizes, in bytes, of one stored matrix."""

    padded_columns: int
    groups: int
    base_row: int
    high_row: int
    high_offset: int
    scale_offset: int
    total: int


def geometry(format: str, shape: tuple[int, ...]) -> RowSplitGeometry:
    """Return the plane geometry; raises `ArtifactError` unless the rank is 2."""
    if len(shape) != 2:
        raise ArtifactError(f"{format}: rank {len(shape)}, expected a matrix [N, K]")
    rows, columns = shape
    constants = GROUPED[format]
    padded = -(-columns // 128) * 128
    groups = padded // constants.group
    base_row = groups * BASE_BYTES
    high_bits = constants.bits - 4 if constants.bits < 8 else 0
    high_row = padded * high_bits // 8
    high_offset = _aligned(rows * base_row)
    scale_offset = high_offset + _aligned(rows * high_row)
    return RowSplitGeometry(
        padded,
        groups,
        base_row,
        high_row,
        high_offset,
        scale_offset,
        scale_offset + rows * groups * 2,
    )


def encoded_bytes(format: str, shape: tuple[int, ...]) -> int:
    """Bytes of a stored matrix; raises `ArtifactError` unless the rank is 2."""
    return geometry(format, shape).total


def pack(format: str, fields: dict[str, np.ndarray], shape: tuple[int, ...]) -> bytes:
    """Return the payload of natural fields `codes` int8 [N, K] and `scales` uint16 [N, groups]."""
    planes = geometry(format, shape)
    rows, columns = shape
    groups = groups_per_row(format, columns)
    codes, scales = fields["codes"], fields["scales"]
    if codes.shape != shape or codes.dtype != np.int8:
        raise ValueError(
            f"{format}: codes are {codes.dtype}{list(codes.shape)}, expected int8{list(shape)}"
        )
    if scales.shape != (rows, groups) or scales.dtype != np.uint16:
        raise ValueError(
            f"{format}: scales are {scales.dtype}{list(scales.shape)}, "
            f"expected uint16{[rows, groups]}"
        )
    bits = GROUPED[format].bits

    def fill(payload: np.ndarray) -> None:
        base = payload[: rows * planes.base_row].reshape(rows, -1)
        high = payload[planes.high_offset :][: rows * planes.high_row].reshape(rows, -1)
        stored = payload[planes.scale_offset :].view("<u2").reshape(rows, planes.groups)
        stored[:, :groups] = scales

        def place(block: slice) -> None:
            lanes = codes[block].view(np.uint8)
            if bits == 8:
                base[block, :columns] = lanes
                return
            lanes = _padded(lanes, planes.padded_columns)
            base[block] = low_bits(lanes)
            if bits > 4:
                high[block] = high_bits(lanes, bits)

        for_each_block(rows, planes.padded_columns, place)

    return assembled(planes.total, fill)


def unpack(
    format: str, shape: tuple[int, ...], payload: np.ndarray, begin: int, end: int
) -> dict[str, np.ndarray]:
    """Return the natural fields of rows `[begin, end)`; reads only the bytes of those rows."""
    planes = geometry(format, shape)
    rows, columns = shape
    bits = GROUPED[format].bits
    base = payload[: rows * planes.base_row].reshape(rows, planes.base_row)[begin:end]
    high = payload[planes.high_offset :][: rows * planes.high_row]
    high = high.reshape(rows, planes.high_row)[begin:end]
    words = payload[planes.scale_offset + begin * planes.groups * 2 :]
    words = words[: (end - begin) * planes.groups * 2].copy().view("<u2")
    scales = words.reshape(end - begin, planes.groups)[:, : groups_per_row(format, columns)]
    codes = np.empty((end - begin, columns), np.int8)

    def place(block: slice) -> None:
        if bits == 8:
            codes[block] = base[block, :columns].view(np.int8)
            return
        lanes = lanes_of_low_bits(base[block])
        if bits > 4:
            lanes |= lanes_of_high_bits(high[block], bits)
        codes[block] = _signed(lanes, bits)[:, :columns]

    for_each_block(end - begin, planes.padded_columns, place)
    return {"codes": codes, "scales": np.ascontiguousarray(scales)}


def _aligned(size: int) -> int:
    return -(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


def _padded(lanes: np.ndarray, columns: int) -> np.ndarray:
    """Contiguous lanes with zeros up to `columns`."""
    if lanes.shape[1] == columns:
        return np.ascontiguousarray(lanes)
    padded = np.zeros((lanes.shape[0], columns), np.uint8)
    padded[:, : lanes.shape[1]] = lanes
    return padded


def _signed(lanes: np.ndarray, bits: int) -> np.ndarray:
    """Two's complement of width `bits`: u ^ h - h with h = 2^(bits-1); 15, 4 bits: 7 - 8 = -1."""
    half = np.uint8(1 << (bits - 1))
    lanes ^= half
    signed = lanes.view(np.int8)
    signed -= np.int8(half)
    return signed
