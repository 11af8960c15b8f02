"""The tools of a request: definitions, choice, and which of them may be called."""

from __future__ import annotations

import dataclasses
from typing import Any

from ninfer_jax.errors import RequestError
from ninfer_jax.server.chat_request import ChatRequest, read_raw
from ninfer_jax.text.tool_set import ToolSet


@dataclasses.dataclass(frozen=True)
class ToolOptions:
    """What the tools of a request come to.

    Attributes:
      definitions: tool definitions for the prompt, as received.
      callable: the tools whose calls are recognised in the output.
    """

    definitions: tuple[dict[str, Any], ...]
    callable: ToolSet


def read_tools(request: ChatRequest) -> ToolOptions:
    """Checks tools, tool choice and parallel calls. Raises `RequestError`.

    Where no tool may be called (`tool_choice` none, or an empty allowed set) the model is not
    told of any, and markup in its output is text.
    """
    tools = read_raw(request.tools, "tools")
    if tools is None:
        tools = []
    if not isinstance(tools, list):
        raise RequestError("tools: expected a list", param="tools")
    for index, tool in enumerate(tools):
        _check_definition(tool, f"tools[{index}]")
    known = ToolSet.from_definitions(tools)
    allowed = _allowed(request.tool_choice, has_tools=bool(tools))
    if allowed is None:
        effective = known
    else:
        unknown = sorted(name for name in allowed if name not in known)
        if unknown:
            raise RequestError(
                f"tool_choice: {unknown[0]!r} is not among the tools", param="tool_choice"
            )
        effective = ToolSet.from_definitions(tools, allowed=allowed)
    if request.parallel_tool_calls is False and effective:
        raise RequestError(
            "parallel_tool_calls: false cannot be guaranteed; leave it out",
            code="parallel_tool_calls_not_supported",
            param="parallel_tool_calls",
        )
    return ToolOptions(tuple(tools) if effective else (), effective)


def _check_definition(tool: Any, where: str) -> None:
    if not isinstance(tool, dict):
        raise RequestError(f"{where}: expected an object", param="tools")
    if tool.get("type") != "function":
        raise RequestError(
            f"{where}.type: found {tool.get('type')!r}, expected function",
            code="tool_type_not_supported",
            param="tools",
        )
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"{where}.function: expected an object", param="tools")
    if function.get("strict"):
        raise RequestError(
            f"{where}.function.strict: arguments cannot be guaranteed to follow the schema; "
            "leave it out",
            code="strict_tools_not_supported",
            param="tools",
        )
    for member, kind in (("description", str), ("parameters", dict)):
        value = function.get(member)
        if value is not None and not isinstance(value, kind):
            expected = "a string" if kind is str else "an object"
            raise RequestError(f"{where}.function.{member}: expected {expected}", param="tools")


def _allowed(choice: Any, *, has_tools: bool) -> frozenset[str] | None:
    """The names that a choice restricts calls to, or None if it does not restrict them."""
    if choice == "none":
        return frozenset()
    if choice is None or choice == "auto":
        return None
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        body = choice.get("allowed_tools", choice)
        names = _names(body) if isinstance(body, dict) and body.get("mode") == "auto" else None
        if names is not None:
            return names
    if not has_tools:
        raise RequestError("tool_choice: there are no tools to choose from", param="tool_choice")
    raise RequestError(
        "tool_choice: a call cannot be forced; use auto, none, or allowed_tools with mode auto",
        code="tool_choice_not_supported",
        param="tool_choice",
    )


def _names(body: dict[str, Any]) -> frozenset[str] | None:
    tools = body.get("tools")
    if not isinstance(tools, list):
        return None
    names = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            return None
        names.append(name)
    return frozenset(names)
