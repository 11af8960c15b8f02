"""Bit planes of small codes: bytes that hold one lane each, to and from packed nibbles and bits.

Several lanes move at once inside a wider little-endian word, so no pass is strided:

    low    2 lanes  0x0b 0x0a              word 0x0a0b,      | >> 4               -> byte 0xab
    high   4 lanes, bits 4 and 5 of each   word, >> 4 & 0x03030303, | >> 6, 12, 18 -> byte
           0x10 0x20 0x30 0x00                0x00030201   1 | 2 << 2 | 3 << 4     -> byte 0x39
"""

from __future__ import annotations

import numpy as np

_PAIR = np.dtype("<u2")
_QUAD = np.dtype("<u4")


def low_bits(lanes: np.ndarray) -> np.ndarray:
    """Pack bits 0..3 of contiguous lanes uint8 `[N, K]` to `[N, K/2]`, even lane low."""
    pairs = lanes.view(_PAIR) & np.uint16(0x0F0F)
    pairs |= pairs >> np.uint16(4)
    return pairs.astype(np.uint8)


def lanes_of_low_bits(packed: np.ndarray) -> np.ndarray:
    """Spread packed nibbles uint8 `[N, K/2]` to lanes uint8 `[N, K]`; inverse of `low_bits`."""
    pairs = packed.astype(_PAIR, order="C")
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    return pairs.view(np.uint8)


def high_bits(lanes: np.ndarray, bits: int) -> np.ndarray:
    """Pack bit 4 (5 `bits`) or bits 4 and 5 (6 `bits`) of lanes uint8 `[N, K]`, LSB first."""
    if bits == 5:
        return np.packbits(lanes & np.uint8(16), axis=1, bitorder="little")
    quads = lanes.view(_QUAD) >> np.uint32(4)
    quads &= np.uint32(0x03030303)
    quads |= quads >> np.uint32(6)
    quads |= quads >> np.uint32(12)
    return quads.astype(np.uint8)


def lanes_of_high_bits(packed: np.ndarray, bits: int) -> np.ndarray:
    """Spread packed high bits to bits 4.. of lanes uint8 `[N, K]`; inverse of `high_bits`."""
    if bits == 5:
        lanes = np.unpackbits(packed, axis=1, bitorder="little")
        lanes <<= np.uint8(4)
        return lanes
    quads = packed.astype(_QUAD, order="C")
    quads |= quads << np.uint32(12)
    quads |= quads << np.uint32(6)
    quads &= np.uint32(0x03030303)
    quads <<= np.uint32(4)
    return quads.view(np.uint8)
