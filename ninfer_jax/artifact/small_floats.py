"""Rounding binary32 to E4M3FN and E2M1 words: to nearest, ties to the even word, saturating.

Both formats have M mantissa bits and steps of q = 2^(e-M), where e is the exponent of the
magnitude, but not below that of the smallest normal, e0. Adding 1.5 * 2^23 * q to a magnitude
leaves a binary32 number whose last bit is worth q: the hardware rounds to nearest, ties to even,
and the low mantissa bits hold k = magnitude / q. The word is k + 2^M * (e - e0), so that multiple
of q is put into the added number too; it is even, which keeps the ties where they belong.

E4M3FN, 0.3: e = -2, q = 2^-5, k = 9.6 -> 10, word 10 + 8 * 4 = 0x2a, value 0.3125.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_EXPONENT = np.int32(0x7F800000)
_HALF_BINADE = 0x400000


@dataclass(frozen=True)
class SmallFloat:
    """A sign, exponent and mantissa format of at most 8 bits, with subnormals."""

    width: int
    mantissa_bits: int
    smallest_normal: float
    largest: float


E4M3FN = SmallFloat(width=8, mantissa_bits=3, smallest_normal=2.0**-6, largest=448.0)
E2M1 = SmallFloat(width=4, mantissa_bits=1, smallest_normal=1.0, largest=6.0)


def rounded_words(values: np.ndarray, format: SmallFloat) -> np.ndarray:
    """Round contiguous float32 values, not NaN, to words (uint8) of the format.

    Infinity and all else above the largest value become that value. The sign bit is that of the
    value: a negative value that rounds to zero gives the word of -0.
    """
    bits = values.view(np.int32)
    shift = 23 - format.mantissa_bits
    smallest = _bits(format.smallest_normal)
    magnitude = bits & np.int32(0x7FFFFFFF)
    np.minimum(magnitude, _bits(format.largest), out=magnitude)
    added = np.maximum(magnitude, smallest)
    added &= _EXPONENT
    added += added >> np.int32(shift)
    added += np.int32((shift << 23) + _HALF_BINADE - (int(smallest) >> shift))
    total = added.view(np.float32)
    total += magnitude.view(np.float32)
    words = added.astype(np.uint8)
    signs = (bits >> np.int32(32 - format.width)).astype(np.uint8)
    signs &= np.uint8(1 << (format.width - 1))
    words |= signs
    return words


def _bits(value: float) -> np.int32:
    return np.float32(value).view(np.int32)
