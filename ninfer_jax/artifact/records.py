"""Typed access to one JSON record: closed member sets, exact types, ranges.

Every failure is an `ArtifactError` that begins with the label of the record.
"""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_jax.errors import ArtifactError

MAXIMUM_INTEGER = (1 << 64) - 1


def kind_of(value: object) -> str:
    """Name a JSON type for a message: bool is never an integer here."""
    names = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        type(None): "null",
    }
    return names.get(type(value), "object" if isinstance(value, dict) else "array")


def identifier(value: object, label: str) -> str:
    """Return an ID: a non-empty string without NUL that is valid UTF-8."""
    if not isinstance(value, str):
        raise ArtifactError(f"{label}: expected a string, got {kind_of(value)}")
    if not value:
        raise ArtifactError(f"{label}: empty string")
    if "\0" in value:
        raise ArtifactError(f"{label}: {value!r} holds a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ArtifactError(f"{label}: {value!a} holds a lone surrogate")
    return value


def integer(value: object, label: str, minimum: int = 0) -> int:
    """Return an integer in `minimum..2^64-1`."""
    if type(value) is not int:
        raise ArtifactError(f"{label}: expected an integer, got {kind_of(value)}")
    if not minimum <= value <= MAXIMUM_INTEGER:
        raise ArtifactError(f"{label}: {value} is outside {minimum}..2^64-1")
    return value


def array(value: object, label: str, *, at_least: int = 0) -> list:
    """Return a list with at least `at_least` entries."""
    if not isinstance(value, list):
        raise ArtifactError(f"{label}: expected an array, got {kind_of(value)}")
    if len(value) < at_least:
        raise ArtifactError(f"{label}: empty, expected at least {at_least} entry")
    return value


class Record:
    """A JSON object with the label under which messages name it."""

    def __init__(self, value: object, label: str):
        if not isinstance(value, dict):
            raise ArtifactError(f"{label}: expected an object, got {kind_of(value)}")
        self.value = value
        self.label = label

    def __contains__(self, member: str) -> bool:
        return member in self.value

    def close(self, required: Iterable[str], optional: Iterable[str] = ()) -> Record:
        """Require exactly these members; returns the record itself."""
        missing = [name for name in required if name not in self.value]
        if missing:
            raise ArtifactError(f"{self.label}: missing member {_quoted(missing)}")
        allowed = {*required, *optional}
        extra = [name for name in self.value if name not in allowed]
        if extra:
            raise ArtifactError(
                f"{self.label}: unexpected member {_quoted(extra)}, "
                f"expected {_quoted(sorted(allowed))}"
            )
        return self

    def identifier(self, member: str) -> str:
        return identifier(self.value[member], f"{self.label}.{member}")

    def integer(self, member: str, minimum: int = 0) -> int:
        return integer(self.value[member], f"{self.label}.{member}", minimum)

    def array(self, member: str, *, at_least: int = 0) -> list:
        return array(self.value[member], f"{self.label}.{member}", at_least=at_least)

    def record(self, member: str) -> Record:
        return Record(self.value[member], f"{self.label}.{member}")

    def shape(self, member: str) -> tuple[int, ...]:
        """Return positive integers, at most 16 of them, whose product fits 64 bits."""
        label = f"{self.label}.{member}"
        axes = self.array(member)
        if len(axes) > 16:
            raise ArtifactError(f"{label}: rank {len(axes)}, at most 16 is accepted")
        product = 1
        for axis in axes:
            product *= integer(axis, label, 1)
        if product > MAXIMUM_INTEGER:
            raise ArtifactError(f"{label}: {axes} holds more than 2^64-1 elements")
        return tuple(axes)


def _quoted(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(ascii(name[:80]) for name in listed[:8])
    return shown + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
