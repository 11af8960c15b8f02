"""Numerals: a table of the rules, and every number read back."""

from __future__ import annotations

import random

import pytest

from ninfer_jax.demo.chinese import chinese, numeral, work

VALUES = {digit: value for value, digit in enumerate("零一二三四五六七八九")}
PLACES = {"十": 10, "百": 100, "千": 1000}


@pytest.mark.parametrize(
    ("number", "spoken"),
    [
        (0, "零"),
        (7, "七"),
        (10, "十"),
        (11, "十一"),
        (19, "十九"),
        (20, "二十"),
        (99, "九十九"),
        (100, "一百"),
        (101, "一百零一"),
        (110, "一百一十"),
        (111, "一百一十一"),
        (1000, "一千"),
        (1001, "一千零一"),
        (1010, "一千零一十"),
        (1019, "一千零一十九"),
        (1100, "一千一百"),
        (1101, "一千一百零一"),
        (2002, "二千零二"),
        (4072, "四千零七十二"),
        (9090, "九千零九十"),
        (9900, "九千九百"),
        (9999, "九千九百九十九"),
    ],
)
def test_rules(number, spoken):
    assert numeral(number) == spoken


def value(spoken: str) -> int:
    """The number that a numeral says."""
    total, digit = 0, None
    for character in spoken:
        if character in PLACES:
            total += (1 if digit is None else digit) * PLACES[character]
            digit = None
        else:
            digit = VALUES[character]
    return total + (digit or 0)


def test_every_number_reads_back():
    for number in range(10_000):
        spoken = numeral(number)
        assert value(spoken) == number
        assert "零零" not in spoken
        assert number == 0 or not spoken.endswith("零")


@pytest.mark.parametrize("number", [-1, 10_000])
def test_numbers_outside_are_refused(number):
    with pytest.raises(ValueError, match=r"outside 0\.\.9999"):
        numeral(number)


def test_the_work_lists_digit_and_place():
    assert work(4072) == "4千0百7十2"
    assert work(5) == "0千0百0十5"


def test_samples_ask_for_their_number():
    rng = random.Random(12)
    for _ in range(500):
        sample = chinese(rng)
        number = int(sample.key.removeprefix("chinese:"))
        assert str(number) in sample.turns[0].question
        assert sample.turns[0].answer == numeral(number)
