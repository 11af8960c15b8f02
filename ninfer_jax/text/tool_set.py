"""The tools a request may call: their names and what is known of their parameters."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ninfer_jax.errors import RequestError

LONGEST_NAME = 64
"""Longest tool name of the OpenAI routes; Anthropic's allow 128."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_PRIMITIVE = frozenset(("string", "number", "integer", "boolean", "null"))


class ToolSet:
    """The effective tools of one request. Falsy if it holds none.

    Attributes:
      longest_name: names longer than this are invalid.
    """

    def __init__(
        self, parameters: Mapping[str, Mapping[str, Any]], *, longest_name: int = LONGEST_NAME
    ):
        """Takes the parameter schema of each tool by name."""
        self.longest_name = longest_name
        self._parameters = dict(parameters)

    @classmethod
    def from_definitions(
        cls,
        definitions: Sequence[Mapping[str, Any]] | None,
        *,
        allowed: Collection[str] | None = None,
        longest_name: int = LONGEST_NAME,
    ) -> ToolSet:
        """Reads tool definitions in any wire form.

        A definition is `{"function": {"name", "parameters"}}` or flat, with the schema under
        `parameters` or `input_schema`. `allowed` restricts the set to some names. Raises
        `RequestError` for a definition without a valid name and for a name given twice.
        """
        parameters: dict[str, Mapping[str, Any]] = {}
        for index, definition in enumerate(definitions or ()):
            function = definition.get("function", definition)
            name = function.get("name") if isinstance(function, Mapping) else None
            if not isinstance(name, str) or not is_valid_name(name, longest_name):
                raise RequestError(
                    f"tools[{index}]: the name is {name!r}; expected 1 to {longest_name} "
                    "letters, digits, '_' or '-'",
                    param="tools",
                )
            if name in parameters:
                raise RequestError(f"tools[{index}]: {name!r} is defined twice", param="tools")
            schema = function.get("parameters") or function.get("input_schema")
            parameters[name] = schema if isinstance(schema, Mapping) else {}
        if allowed is not None:
            parameters = {name: p for name, p in parameters.items() if name in allowed}
        return cls(parameters, longest_name=longest_name)

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parameters)

    def type_hint(self, name: str, key: str) -> frozenset[str] | None:
        """JSON types that the schema admits for one parameter, or None if it does not say.

        Only the direct `type`, and an `anyOf` or `oneOf` made of primitive types alone, are read.
        """
        properties = self._parameters[name].get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        if not isinstance(schema, Mapping):
            return None
        if "type" in schema:
            return _types(schema["type"], _TYPES)
        for combination in ("anyOf", "oneOf"):
            choices = schema.get(combination)
            if isinstance(choices, Sequence) and choices and not isinstance(choices, str):
                hints = [
                    _types(choice.get("type"), _PRIMITIVE) if isinstance(choice, Mapping) else None
                    for choice in choices
                ]
                if None not in hints:
                    return frozenset().union(*hints)
        return None


def is_valid_name(name: str, longest_name: int = LONGEST_NAME) -> bool:
    """Says whether `name` is made of 1 to `longest_name` letters, digits, `_` and `-`."""
    return len(name) <= longest_name and _NAME.fullmatch(name) is not None


def _types(declared: Any, known: frozenset[str]) -> frozenset[str] | None:
    if isinstance(declared, str):
        declared = [declared]
    if not isinstance(declared, Sequence) or not declared:
        return None
    if not all(isinstance(name, str) and name in known for name in declared):
        return None
    return frozenset(declared)
