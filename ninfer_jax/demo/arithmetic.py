"""Additions, subtractions and short sums, worked column by column.

Every line of the work is a function of a few tokens nearby: operands are restated with
three digits, each column from the right is one line `digits + carry = carry digit`, and the
last line reads the column results upwards. Worked example, 437 + 285:

    437+285
    7+5+0=12
    3+8+1=12
    4+2+1=07
    0722

The answer is that line without leading zeros. In subtractions the first digit behind `=` is
the borrow: 612 - 87 has the columns `2-7-0=15`, `1-8-1=12`, `6-0-1=05`.
"""

from __future__ import annotations

import random

from ninfer_jax.demo.samples import Sample, Turn

COLUMNS = 3

ADDITION = (
    "What is {0} + {1}?",
    "What is {0} + {1}?",
    "Compute {0} + {1}.",
    "{0} + {1} = ?",
    "{0}+{1}",
    "Calculate {0} + {1}",
    "How much is {0} plus {1}?",
    "Add {0} and {1}.",
)
SUBTRACTION = (
    "What is {0} - {1}?",
    "What is {0} - {1}?",
    "Compute {0} - {1}.",
    "{0} - {1} = ?",
    "{0}-{1}",
    "Calculate {0} - {1}",
    "How much is {0} minus {1}?",
)
SUM = (
    "What is {0} + {1} + {2}?",
    "Compute {0} + {1} + {2}.",
    "{0} + {1} + {2} = ?",
    "Add {0}, {1} and {2}.",
)


def work(sign: str, operands: list[int]) -> str:
    """The lines of the think block for operands of at most three digits."""
    digits = [f"{operand:0{COLUMNS}d}" for operand in operands]
    lines = [sign.join(digits)]
    carry, results = 0, []
    for column in reversed(range(COLUMNS)):
        parts = [int(number[column]) for number in digits]
        if sign == "+":
            total = sum(parts) + carry
            next_carry, digit = divmod(total, 10)
        else:
            total = parts[0] - sum(parts[1:]) - carry
            next_carry, digit = (1, total + 10) if total < 0 else (0, total)
        terms = sign.join(str(part) for part in [*parts, carry])
        lines.append(f"{terms}={next_carry}{digit}")
        carry = next_carry
        results.append(str(digit))
    lines.append(str(carry) + "".join(reversed(results)))
    return "\n".join(lines)


def number(rng: random.Random) -> int:
    """Below 1,000, all lengths well represented."""
    return rng.randrange(rng.choice((10, 100, 100, 1000, 1000, 1000)))


def question(kind: str, operands: list[int], form: str) -> Sample:
    """The sample of one problem."""
    sign = "-" if kind == "difference" else "+"
    result = operands[0] - operands[1] if sign == "-" else sum(operands)
    ordered = operands if sign == "-" else sorted(operands)
    turn = Turn(form.format(*operands), work(sign, operands), str(result))
    return Sample("reasoning", f"{kind}:{ordered}", (turn,))


def sum_of_three(rng: random.Random) -> Sample:
    """Three numbers below 100."""
    return question("sum3", [rng.randrange(100) for _ in range(3)], rng.choice(SUM))


def arithmetic(rng: random.Random) -> Sample:
    """A random problem: two in five additions, two differences, one sum of three."""
    kind = rng.choice(("sum2", "sum2", "difference", "difference", "sum3"))
    if kind == "sum3":
        return sum_of_three(rng)
    operands = [number(rng), number(rng)]
    if kind == "sum2":
        return question(kind, operands, rng.choice(ADDITION))
    return question(kind, sorted(operands, reverse=True), rng.choice(SUBTRACTION))
