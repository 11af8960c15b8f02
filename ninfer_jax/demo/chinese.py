"""Integers below 10,000 read out in Chinese numerals.

The work lists digit and place, then the rules drop what is not spoken: a zero inside is
read once, trailing zeros are silent, and 10..19 begin with 十.
"""

from __future__ import annotations

import random

from ninfer_jax.demo.samples import Sample, Turn

DIGITS = "零一二三四五六七八九"
PLACES = ("千", "百", "十", "")
FORMS = (
    "Read {} in Chinese.",
    "Say {} in Chinese.",
    "{} in Chinese?",
    "Write {} in Chinese numerals.",
    "用中文读出 {}。",
)


def numeral(number: int) -> str:
    """The spoken form of 0..9999. Worked example: 4072 -> 四千零七十二; 110 -> 一百一十."""
    if not 0 <= number < 10_000:
        raise ValueError(f"{number} is outside 0..9999")
    if number == 0:
        return DIGITS[0]
    spoken, gap = "", False
    for digit, place in zip(f"{number:04d}", PLACES, strict=True):
        if digit == "0":
            gap = bool(spoken)
            continue
        spoken += (DIGITS[0] if gap else "") + DIGITS[int(digit)] + place
        gap = False
    return spoken[1:] if 10 <= number < 20 else spoken


def work(number: int) -> str:
    """Digit and place, four lines at most in one: `4千0百7十2`."""
    digits = f"{number:04d}"
    return "".join(digit + place for digit, place in zip(digits, PLACES, strict=True))


def chinese(rng: random.Random) -> Sample:
    """A random number; short ones are over-represented."""
    number = rng.randrange(rng.choice((20, 100, 1000, 10_000, 10_000, 10_000)))
    turn = Turn(rng.choice(FORMS).format(number), work(number), numeral(number))
    return Sample("chinese", f"chinese:{number}", (turn,))
