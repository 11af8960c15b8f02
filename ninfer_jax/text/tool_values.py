"""Turns the text of a tool parameter into JSON, guided by the type its schema admits."""

from __future__ import annotations

import dataclasses
from typing import Any

from ninfer_jax.text.channels import ASCII_WHITESPACE
from ninfer_jax.text.json_text import dump_json, is_integral, is_json_number, parse_json, quote

_BOOLEANS = {"true": "true", "false": "false"}


@dataclasses.dataclass(frozen=True)
class ParameterValue:
    """One converted parameter.

    Attributes:
      json: the value as JSON text, or None if the parameter is left out.
      mismatched: True if the text is not of a type that the schema admits.
    """

    json: str | None
    mismatched: bool = False


def convert(text: str, hint: frozenset[str] | None) -> ParameterValue:
    """Converts the text of one parameter.

    | hint | text | result |
    |---|---|---|
    | admits string | any | that string, verbatim |
    | not string | empty or white space | left out |
    | boolean | true, True, FALSE ... | boolean |
    | integer | 7, 7.0, 1e2 | number as written |
    | number, null, array, object | JSON of the type | that value |
    | any | something else | JSON of its own type or else a string, mismatched |
    | None | any | JSON if it parses, else a string |
    """
    if hint is not None and "string" in hint:
        return ParameterValue(quote(text))
    bare = text.strip(ASCII_WHITESPACE)
    if hint is not None and not bare:
        return ParameterValue(None)
    if hint is not None and "boolean" in hint and bare.lower() in _BOOLEANS:
        return ParameterValue(_BOOLEANS[bare.lower()])
    kinds, written = _as_json(bare)
    if hint is None:
        return ParameterValue(quote(text) if written is None else written)
    if written is None:
        return ParameterValue(quote(text), mismatched=True)
    return ParameterValue(written, mismatched=not kinds & hint)


def _as_json(text: str) -> tuple[frozenset[str], str | None]:
    """JSON types of a text and the text in normal form; no type and None if it is not JSON."""
    if is_json_number(text):
        kinds = ("number", "integer") if is_integral(text) else ("number",)
        return frozenset(kinds), text
    try:
        value = parse_json(text)
        return frozenset((_kind(value),)), dump_json(value)
    except ValueError:
        return frozenset(), None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array"
