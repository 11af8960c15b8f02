"""JSON for prompts and tool calls: key order and the spelling of numbers survive.

A model that wrote `7.0` must read `7.0` again in its history, or the prefix cache misses and
the model sees a call it never made. Numbers whose spelling Python would change are therefore
kept as `NumberText`. Separators are `", "` and `": "`, characters are not escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, Self

_LONGEST_PLAIN_INTEGER = 300
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class NumberText(float):
    """A JSON number that remembers how it was written; `str()` gives that spelling."""

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def parse_json(text: str) -> Any:
    """Parses strict JSON, keeping key order and number spelling.

    Raises `ValueError` for anything that is not JSON: NaN and Infinity, trailing text, and
    nesting deeper than the interpreter can follow.
    """
    try:
        return json.loads(
            text, parse_float=NumberText, parse_int=_integer, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def dump_json(value: Any) -> str:
    """Writes `value` as one line of JSON with separators `", "` and `": "`.

    Lone surrogates, which no UTF-8 text can hold, are written as `\\udXXX`. Raises `ValueError`
    if `value` is nested too deeply and `TypeError` if it is not JSON data.
    """
    pieces: list[str] = []
    try:
        _append(value, pieces)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    return "".join(pieces)


def is_json_number(text: str) -> bool:
    """Says whether the whole of `text` is a JSON number."""
    return _NUMBER.fullmatch(text) is not None


def is_integral(number: str) -> bool:
    """Says whether a JSON number has an integer value, whatever its spelling (`7.0`, `1e2`)."""
    mantissa, _, exponent = number.lower().lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).strip("0")
    if not digits:
        return True
    trailing_zeros = len(whole + fraction) - len((whole + fraction).rstrip("0"))
    # 12.30e1: two fraction digits, one trailing zero, so one more power of ten is needed.
    sign = -1 if exponent.startswith("-") else 1
    magnitude = exponent.lstrip("+-").lstrip("0") or "0"
    if len(magnitude) > 12:
        return sign > 0
    return sign * int(magnitude) >= len(fraction) - trailing_zeros


def quote(text: str) -> str:
    """Writes one JSON string."""
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", encode_basestring(text))


def _integer(text: str) -> int | NumberText:
    if text == "-0" or len(text) > _LONGEST_PLAIN_INTEGER:
        return NumberText(text)
    return int(text)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _append(value: Any, pieces: list[str]) -> None:
    if isinstance(value, str):
        pieces.append(quote(value))
    elif value is None:
        pieces.append("null")
    elif isinstance(value, bool):
        pieces.append("true" if value else "false")
    elif isinstance(value, NumberText):
        pieces.append(value.text)
    elif isinstance(value, (int, float)):
        pieces.append(json.dumps(value, allow_nan=False))
    elif isinstance(value, Mapping):
        gap = "{"
        for key, member in value.items():
            pieces.append(gap + quote(str(key)) + ": ")
            _append(member, pieces)
            gap = ", "
        pieces.append("}" if value else "{}")
    elif isinstance(value, Sequence):
        gap = "["
        for member in value:
            pieces.append(gap)
            _append(member, pieces)
            gap = ", "
        pieces.append("]" if value else "[]")
    else:
        raise TypeError(f"{type(value).__name__} is not JSON data")
