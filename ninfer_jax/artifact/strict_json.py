"""Strict JSON for directories that come from untrusted files.

Refused: text that is not UTF-8, duplicate member names, NaN and infinities (spelled or by overflow
of a literal), integers of more than 40 digits, and nesting deeper than 64. Time and memory are
proportional to the text.
"""

from __future__ import annotations

import json
import math
import re

import numpy as np

from ninfer_jax.errors import ArtifactError

MAXIMUM_DEPTH = 64
MAXIMUM_DIGITS = 40

# The closing quote is optional so that an unterminated string is consumed once, in linear time.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def parse_json(text: bytes, where: str) -> object:
    """Return the parsed document; raises `ArtifactError` with position or member name.

    `where` begins the message, such as "directory" or "resource tokenizer.json".
    """
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{where}: not UTF-8 at byte {error.start}") from None
    _check_depth(text, where)

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        record = dict(pairs)
        if len(record) != len(pairs):
            seen: set[str] = set()
            name = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise ArtifactError(f"{where}: duplicate member {name!r}")
        return record

    def constant(word: str) -> object:
        raise ArtifactError(f"{where}: {word} is not a JSON number")

    def integer(digits: str) -> int:
        if len(digits) > MAXIMUM_DIGITS:
            raise ArtifactError(f"{where}: an integer of {len(digits)} digits")
        return int(digits)

    def real(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            raise ArtifactError(f"{where}: number {literal[:40]} is beyond binary64")
        return value

    try:
        return json.loads(
            decoded,
            object_pairs_hook=members,
            parse_constant=constant,
            parse_int=integer,
            parse_float=real,
        )
    except json.JSONDecodeError as error:
        raise ArtifactError(f"{where}: not JSON at character {error.pos}: {error.msg}") from None


def _check_depth(text: bytes, where: str) -> None:
    """Raise unless brackets outside strings nest at most 64 deep, whatever the parser would do."""
    brackets = np.frombuffer(re.sub(rb"[^\[\]{}]+", b"", _STRING.sub(b"", text)), np.uint8)
    if not brackets.size:
        return
    # "[" 0x5b and "{" 0x7b open; "]" 0x5d and "}" 0x7d close.
    steps = np.where((brackets == 0x5B) | (brackets == 0x7B), 1, -1)
    depth = int(np.cumsum(steps).max())
    if depth > MAXIMUM_DEPTH:
        raise ArtifactError(f"{where}: nested {depth} deep, at most {MAXIMUM_DEPTH} is accepted")
