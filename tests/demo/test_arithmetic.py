"""The work in the think block, read back line by line."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from ninfer_jax.demo.arithmetic import arithmetic, work


@pytest.mark.parametrize(
    ("sign", "operands", "lines"),
    [
        ("+", [437, 285], "437+285 7+5+0=12 3+8+1=12 4+2+1=07 0722"),
        ("+", [999, 999], "999+999 9+9+0=18 9+9+1=19 9+9+1=19 1998"),
        ("+", [0, 0], "000+000 0+0+0=00 0+0+0=00 0+0+0=00 0000"),
        ("+", [99, 99, 99], "099+099+099 9+9+9+0=27 9+9+9+2=29 0+0+0+2=02 0297"),
        ("-", [612, 87], "612-087 2-7-0=15 1-8-1=12 6-0-1=05 0525"),
        ("-", [100, 100], "100-100 0-0-0=00 0-0-0=00 1-1-0=00 0000"),
        ("-", [500, 1], "500-001 0-1-0=19 0-0-1=19 5-0-1=04 0499"),
    ],
)
def test_worked_examples(sign, operands, lines):
    assert work(sign, operands).split("\n") == lines.split(" ")


def check_work(sign: str, lines: list[str]) -> int:
    """Verifies every line against the first one alone; returns the number of the last."""
    operands = lines[0].split(sign)
    assert all(re.fullmatch(r"\d{3}", operand) for operand in operands)
    carry, digits = 0, ""
    for line, column in zip(lines[1:4], (2, 1, 0), strict=True):
        left, right = line.split("=")
        terms = [int(term) for term in left.split(sign)]
        assert terms == [*(int(operand[column]) for operand in operands), carry]
        next_carry, digit = int(right[0]), int(right[1])
        if sign == "+":
            assert sum(terms) == 10 * next_carry + digit
        else:
            assert terms[0] - sum(terms[1:]) == digit - 10 * next_carry
        carry, digits = next_carry, str(digit) + digits
    assert lines[4] == f"{carry}{digits}"
    assert len(lines) == 5
    return int(lines[4])


def test_thousands_of_problems_are_worked_rightly():
    rng = random.Random(11)
    lengths, kinds = set(), set()
    for _ in range(5_000):
        sample = arithmetic(rng)
        turn = sample.turns[0]
        kind, operands = sample.key.split(":")
        numbers = [int(n) for n in re.findall(r"\d+", operands)]
        asked = [int(n) for n in re.findall(r"\d+", turn.question)]
        sign = "-" if kind == "difference" else "+"
        assert asked == numbers if sign == "-" else sorted(asked) == numbers
        expected = numbers[0] - numbers[1] if sign == "-" else sum(numbers)
        assert check_work(sign, turn.reasoning.split("\n")) == expected >= 0
        assert turn.answer == str(expected)
        kinds.add(kind)
        lengths.update(len(str(n)) for n in asked)
    assert kinds == {"sum2", "sum3", "difference"}
    assert lengths == {1, 2, 3}


def test_every_column_is_right():
    """All digits with both carries, as the middle column of a problem."""
    for a, b, carry in itertools.product(range(10), range(10), (0, 1)):
        low = 9 * carry
        total = work("+", [10 * a + low, 10 * b + low]).split("\n")
        assert check_work("+", total) == 10 * (a + b) + 2 * low
        minuend, subtrahend = 900 + 10 * a, 10 * b + carry
        difference = work("-", [minuend, subtrahend]).split("\n")
        assert check_work("-", difference) == minuend - subtrahend
