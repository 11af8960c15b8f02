"""The reference encoders in exact scalar arithmetic, written from the specification alone.

One value at a time, as a fraction; every rounding step is a call. Nothing here uses numpy or the
package. `Refused` stands for the errors that the specification asks for.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from fractions import Fraction


class Refused(Exception):
    """The specification wants an error for this input."""


@dataclass(frozen=True)
class Binary:
    """An IEEE format: significand bits, exponent of the smallest subnormal, word of infinity."""

    precision: int
    smallest: int
    infinity: int


BINARY32 = Binary(24, -149, 0x7F800000)
BINARY16 = Binary(11, -24, 0x7C00)
BFLOAT16 = Binary(8, -133, 0x7F80)

E2M1 = [Fraction(magnitude) for magnitude in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]
E4M3 = [
    Fraction(word & 7, 512)
    if word < 8
    else (1 + Fraction(word & 7, 8)) * Fraction(2) ** ((word >> 3) - 7)
    for word in range(0x7F)
]
# bits: (columns of a group, smallest code, largest code)
GROUPED = {4: (64, -8, 7), 5: (64, -16, 15), 6: (64, -32, 31), 8: (32, -127, 127)}


def word_of(magnitude: Fraction, format: Binary) -> int:
    """Word of the nearest number of a magnitude, ties to even; infinity when it overflows."""
    if magnitude == 0:
        return 0
    top, bottom = magnitude.numerator, magnitude.denominator
    # The lengths of numerator and denominator bound the exponent to within one.
    exponent = top.bit_length() - bottom.bit_length()
    if bottom << max(exponent, 0) > top << max(-exponent, 0):
        exponent -= 1
    quantum = max(exponent - format.precision + 1, format.smallest)
    unit = bottom << max(quantum, 0)
    whole, rest = divmod(top << max(-quantum, 0), unit)
    if 2 * rest > unit or (2 * rest == unit and whole % 2 == 1):
        whole += 1
    # A significand that needs no hidden bit is subnormal; a carry moves into the exponent field.
    word = ((quantum - format.smallest) << (format.precision - 1)) + whole
    return min(word, format.infinity)


def value_of(word: int, format: Binary) -> Fraction:
    """Magnitude that a word without sign denotes; `Refused` for infinity and NaN."""
    if word >= format.infinity:
        raise Refused("not finite")
    field, significand = word >> (format.precision - 1), word & ((1 << (format.precision - 1)) - 1)
    exponent = format.smallest
    if field:
        significand += 1 << (format.precision - 1)
        exponent += field - 1
    return Fraction(significand << max(exponent, 0), 1 << max(-exponent, 0))


def rounded(value: Fraction, format: Binary) -> Fraction:
    """`f32(...)`, `bf16(...)` or `f16(...)` of a signed exact value."""
    magnitude = value_of(word_of(abs(value), format), format)
    return -magnitude if value < 0 else magnitude


def nearest(magnitude: Fraction, table: list[Fraction]) -> int:
    """Index of the nearest table entry, ties to the even index, saturating at the last."""
    if magnitude >= table[-1]:
        return len(table) - 1
    below = bisect.bisect_right(table, magnitude) - 1
    down, up = magnitude - table[below], table[below + 1] - magnitude
    if down == up:
        return below if below % 2 == 0 else below + 1
    return below if down < up else below + 1


def exact(values: list[float]) -> list[Fraction]:
    """The values as fractions; `Refused` for infinity and NaN."""
    if not all(map(math.isfinite, values)):
        raise Refused("not finite")
    return [Fraction(value) for value in values]


def negative(value: float) -> bool:
    """The sign bit, also that of -0.0."""
    return math.copysign(1.0, value) < 0


def grouped_row(values: list[float], bits: int) -> tuple[list[int], list[int]]:
    """Codes and binary16 scale words of one row (section 2.2)."""
    width, smallest, largest = GROUPED[bits]
    codes: list[int] = []
    words: list[int] = []
    for begin in range(0, len(values), width):
        group = exact(values[begin : begin + width])
        maximum = max(abs(value) for value in group)
        if maximum == 0:
            codes += [0] * len(group)
            words.append(0)
            continue
        word = word_of(rounded(maximum / largest, BINARY32), BINARY16) or 1
        scale = value_of(word, BINARY16)
        inverse = rounded(1 / scale, BINARY32)
        for value in group:
            # round() of a fraction is half to even.
            code = round(rounded(value * inverse, BINARY32))
            codes.append(min(max(code, smallest), largest))
        words.append(word)
    return codes, words


def fp8_row(values: list[float]) -> tuple[list[int], int]:
    """Code words and BF16 scale word of one row (section 2.3)."""
    signs = [0x80 if negative(value) else 0 for value in values]
    row = [rounded(value, BFLOAT16) for value in exact(values)]
    maximum = max(abs(value) for value in row)
    if maximum == 0:
        return [0] * len(row), 0
    word = word_of(rounded(maximum / 448, BINARY32), BFLOAT16) or 1
    scale = value_of(word, BFLOAT16)
    # The reciprocal of a scale up to 2^-128 is infinite: any value but zero goes to the limit.
    endless = word_of(1 / scale, BINARY32) == BINARY32.infinity
    codes = []
    for value, sign in zip(row, signs, strict=True):
        if value == 0:
            codes.append(sign)
        elif endless:
            codes.append(sign | 0x7E)
        else:
            product = word_of(abs(value) * rounded(1 / scale, BINARY32), BINARY32)
            clamped = min(product, word_of(Fraction(448), BINARY32))
            codes.append(sign | nearest(value_of(clamped, BINARY32), E4M3))
    return codes, word


def nvfp4_divisor(values: list[float]) -> Fraction:
    """The divisor of a whole matrix (section 2.4)."""
    maximum = max(abs(value) for value in exact(values))
    if maximum == 0:
        return Fraction(1)
    return rounded(2688 / maximum, BINARY32)


def nvfp4_row(values: list[float], divisor: Fraction) -> tuple[list[int], list[int]]:
    """Codes 0..15, one per column, and E4M3FN scale words of one row (section 2.4)."""
    codes: list[int] = []
    words: list[int] = []
    for begin in range(0, len(values), 16):
        block = exact(values[begin : begin + 16])
        maximum = max(abs(value) for value in block)
        target = rounded(rounded(maximum * divisor, BINARY32) / 6, BINARY32)
        word = nearest(min(target, Fraction(448)), E4M3)
        if word == 0 and maximum > 0:
            word = 1
        words.append(word)
        for value, original in zip(block, values[begin : begin + 16], strict=True):
            if word == 0:
                codes.append(0)
                continue
            scaled = rounded(rounded(abs(value) * divisor, BINARY32) / E4M3[word], BINARY32)
            codes.append(nearest(scaled, E2M1) | (8 if negative(original) else 0))
    return codes, words
