"""Kinds of option values, each with a strict reader for the command line and for config files.

A kind reads text from the command line with `parse`, and checks a Python value of a config file
with `check`. Both raise `ValueError` without a message; the caller knows the option and says
what was found, and `expected` says what would have been right.

    Integer(1, 65535)   "8080" -> 8080      "+8080", "8_080", "0x50", " 8080", "65536": refused
    Integer.check       8080 -> 8080        "8080", True, 8080.0: refused
"""

from __future__ import annotations

import dataclasses
import fractions
import math
import re
from typing import Any, Protocol

_INTEGER = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
_REAL = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST_NUMBER = 32
_MEBIBYTE = 1 << 20


class Kind(Protocol):
    """What values an option takes."""

    @property
    def expected(self) -> str:
        """The values that are right, in words: `an integer from 1 to 65535`."""

    @property
    def placeholder(self) -> str:
        """How the value is shown in the help text; empty for a switch."""

    def parse(self, text: str) -> Any:
        """Reads the text of a command line."""

    def check(self, value: Any) -> Any:
        """Accepts a value of a config file, or refuses it."""


@dataclasses.dataclass(frozen=True)
class Integer:
    """A whole number in decimal digits, from `low` to `high` (None: no upper bound)."""

    low: int = 0
    high: int | None = None
    multiple_of: int = 1

    placeholder = "N"

    @property
    def expected(self) -> str:
        bounds = f"{self.low} or more" if self.high is None else f"from {self.low} to {self.high}"
        multiple = f", a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"an integer {bounds}{multiple}"

    def parse(self, text: str) -> int:
        if len(text) > _LONGEST_NUMBER or not _INTEGER.fullmatch(text):
            raise ValueError
        return self.check(int(text))

    def check(self, value: Any) -> int:
        if type(value) is not int or value < self.low or value % self.multiple_of:
            raise ValueError
        if self.high is not None and value > self.high:
            raise ValueError
        return value


@dataclasses.dataclass(frozen=True)
class IntegerOr:
    """An integer, or one word in its place."""

    integer: Integer
    word: str

    @property
    def placeholder(self) -> str:
        return f"N|{self.word}"

    @property
    def expected(self) -> str:
        return f"{self.integer.expected} or {self.word!r}"

    def parse(self, text: str) -> int | str:
        return text if text == self.word else self.integer.parse(text)

    def check(self, value: Any) -> int | str:
        return value if value == self.word else self.integer.check(value)


@dataclasses.dataclass(frozen=True)
class Real:
    """A finite number from `low` to `high`."""

    low: float
    high: float

    placeholder = "X"

    @property
    def expected(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    def parse(self, text: str) -> float:
        if len(text) > _LONGEST_NUMBER or not _REAL.fullmatch(text):
            raise ValueError
        return self.check(float(text))

    def check(self, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError
        if not self.low <= value <= self.high:
            raise ValueError
        return float(value)


@dataclasses.dataclass(frozen=True)
class Mebibytes:
    """A decimal number of MiB that is a whole number of bytes: `0.5`, `8192`."""

    placeholder = "MIB"
    expected = "a number of MiB, 0 or more, that is a whole number of bytes"

    def parse(self, text: str) -> float:
        if len(text) > _LONGEST_NUMBER or not _DECIMAL.fullmatch(text):
            raise ValueError
        return self._whole(fractions.Fraction(text))

    def check(self, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise ValueError
        return self._whole(fractions.Fraction(value))

    def _whole(self, mebibytes: fractions.Fraction) -> float:
        if (mebibytes * _MEBIBYTE).denominator != 1:
            raise ValueError
        return float(mebibytes)


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def placeholder(self) -> str:
        return "|".join(self.words)

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.words)

    def parse(self, text: str) -> str:
        return self.check(text)

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError
        return value


@dataclasses.dataclass(frozen=True)
class Text:
    """A text that is not empty."""

    placeholder: str = "TEXT"
    expected: str = "a text that is not empty"

    def parse(self, text: str) -> str:
        return self.check(text)

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value


def file_path() -> Text:
    """The path of a file; whether it exists is checked where it is read."""
    return Text("PATH", "a path that is not empty")


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A flag that may be given several times; a config file gives a list."""

    each: Kind

    @property
    def placeholder(self) -> str:
        return self.each.placeholder

    @property
    def expected(self) -> str:
        return f"{self.each.expected} (repeatable; a list in a config file)"

    def parse(self, text: str) -> Any:
        return self.each.parse(text)

    def check(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError
        return tuple(self.each.check(member) for member in value)


@dataclasses.dataclass(frozen=True)
class Switch:
    """On or off; on the command line its presence means on."""

    placeholder = ""
    expected = "True or False"

    def parse(self, text: str) -> bool:
        raise ValueError

    def check(self, value: Any) -> bool:
        if type(value) is not bool:
            raise ValueError
        return value
