"""Grouped integers as compressed-tensors packs them (`pack-quantized`).

A code of b bits is stored as `code + 2^(b-1)`, `32 // b` of them in an int32 word, the first in
the lowest bits; the last word of a row is filled with zeros.
"""

from __future__ import annotations

import numpy as np

from ninfer_jax.artifact.grouped import GROUPED


def packed_columns(format: str, columns: int) -> int:
    """Words of a row. Q5, 64 columns: 6 codes a word, 11 words."""
    return -(-columns // (32 // GROUPED[format].bits))


def pack_integers(format: str, codes: np.ndarray) -> np.ndarray:
    """Pack codes int8 `[N, K]` into words int32 `[N, packed_columns]`.

    Q4 codes -8 -7 7: 0x0 | 0x1 << 4 | 0xf << 8 = 0xf10.
    """
    bits = GROUPED[format].bits
    each, words = 32 // bits, np.zeros((len(codes), packed_columns(format, codes.shape[1])), "<u4")
    for lane in range(each):
        part = codes[:, lane::each].astype(np.int16) + (1 << bits - 1)
        words[:, : part.shape[1]] |= part.astype(np.uint32) << np.uint32(bits * lane)
    return words.view("<i4")


def unpack_integers(format: str, words: np.ndarray, columns: int) -> np.ndarray:
    """The inverse of `pack_integers`: codes int8 `[N, columns]`; any word gives some code."""
    bits = GROUPED[format].bits
    each, unsigned = 32 // bits, words.view("<u4")
    codes = np.empty((len(words), columns), np.int8)
    for lane in range(min(each, columns)):
        part = unsigned[:, : len(range(lane, columns, each))] >> np.uint32(bits * lane)
        part = (part & np.uint32((1 << bits) - 1)).astype(np.int16) - (1 << bits - 1)
        codes[:, lane::each] = part
    return codes
