"""Brings the messages of a request into the one form that chat templates expect.

Wire formats differ in spelling; templates know a single one. What is changed here changes the
form only: `content` becomes a string unless it holds media, argument strings become objects
with their key order and number spelling, reasoning has one name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_jax.errors import RequestError
from ninfer_jax.text.json_text import parse_json

_THINK_OPEN = "<think>"
_THINK_CLOSE = "</think>"


def normalise_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    split_inline_reasoning: bool,
    developer_is_system: bool = False,
) -> list[dict[str, Any]]:
    """Returns new messages in template form; the input is not changed.

    With `split_inline_reasoning`, an assistant turn without a reasoning member is split at the
    first `</think>` of its content, as templates do that look for one. With
    `developer_is_system`, role `developer` becomes `system`. Raises `RequestError`.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError("messages must be a list", param="messages")
    normalised = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"{where} must be an object with a role", param="messages")
        turn = dict(message)
        if turn["role"] == "function":
            turn["role"] = "tool"
        if turn["role"] == "developer" and developer_is_system:
            turn["role"] = "system"
        turn["content"] = _content(turn.get("content"), where)
        if turn["role"] == "assistant":
            _normalise_assistant(turn, where, split_inline_reasoning)
        normalised.append(turn)
    return normalised


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Joins adjacent text parts without a separator; text alone becomes a string."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where}.content must be a string or a list of parts", param="messages")
    parts: list[dict[str, Any]] = []
    for part in content:
        if not isinstance(part, Mapping):
            raise RequestError(f"{where}.content holds a part that is no object", param="messages")
        if part.get("type") != "text":
            parts.append(dict(part))
        elif not isinstance(part.get("text"), str):
            raise RequestError(f"{where}.content holds a text part without text", param="messages")
        elif parts and parts[-1].get("type") == "text":
            parts[-1]["text"] += part["text"]
        else:
            parts.append({"type": "text", "text": part["text"]})
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].get("type") == "text":
        return parts[0]["text"]
    return parts


def _normalise_assistant(turn: dict[str, Any], where: str, split_inline_reasoning: bool) -> None:
    reasoning = turn.pop("reasoning", None)
    named = turn.pop("reasoning_content", None)
    if reasoning is not None and named is not None and reasoning != named:
        raise RequestError(
            f"{where}: reasoning and reasoning_content differ; give one of them", param="messages"
        )
    reasoning = named if named is not None else reasoning
    content = turn["content"]
    if reasoning is None and split_inline_reasoning and isinstance(content, str):
        before, close, after = content.partition(_THINK_CLOSE)
        if close:
            reasoning = before.rstrip("\n").rpartition(_THINK_OPEN)[2].lstrip("\n")
            turn["content"] = after.lstrip("\n")
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise RequestError(f"{where}: reasoning must be a string", param="messages")
        turn["reasoning_content"] = reasoning
    calls = turn.pop("tool_calls", None)
    if calls:
        turn["tool_calls"] = [_tool_call(call, where) for call in calls]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}: a tool call must name its function", param="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise RequestError(
                f"{where}: arguments of {function['name']!r} are not JSON: {error}",
                param="messages",
            ) from error
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise RequestError(
            f"{where}: arguments of {function['name']!r} must be a JSON object", param="messages"
        )
    return {
        "type": "function",
        **{k: v for k, v in call.items() if k not in ("function", "name", "arguments")},
        "function": {"name": function["name"], "arguments": arguments},
    }
