"""The messages of a request: what is accepted, in the form that chat templates take.

Checks of the wire contract are here; the change of form (joined text parts, argument objects,
one name for reasoning) is in `text.history`.
"""

from __future__ import annotations

from typing import Any

from ninfer_jax.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MEDIA_PARTS = ("image_url", "video_url", "image", "video")
_OTHER_MODALITIES = ("input_audio", "audio", "audio_url", "file", "input_file")


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Returns messages for the template. Raises `RequestError` with param `messages`."""
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages: expected a list with at least one message")
    checked = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    return _order_tool_results(checked)


def _wrong(message: str, code: str | None = None) -> RequestError:
    return RequestError(message, code=code, param="messages")


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _wrong(f"{where}: expected an object")
    role = message.get("role")
    if role not in ROLES:
        raise _wrong(
            f"{where}.role: found {role!r}, expected one of {', '.join(ROLES)}",
            "unsupported_role",
        )
    is_tool = role in ("tool", "function")
    if message.get("name") and not is_tool:
        raise _wrong(
            f"{where}.name: only tool messages may have a name", "message_name_not_supported"
        )
    turn = {key: value for key, value in message.items() if key not in ("role", "name")}
    turn["role"] = "tool" if is_tool else role
    turn["content"] = _content(message.get("content"), role, where)
    if role == "assistant":
        _assistant(turn, where)
    elif "tool_calls" in turn:
        raise _wrong(f"{where}.tool_calls: only assistant messages may have calls")
    if turn["content"] is None and not (role == "assistant" or is_tool):
        raise _wrong(f"{where}.content: this field is required")
    return turn


def _content(content: Any, role: str, where: str) -> str | list[dict[str, Any]] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(f"{where}.content: expected a string or a list of parts")
    return [_part(part, role, f"{where}.content[{index}]") for index, part in enumerate(content)]


def _part(part: Any, role: str, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _MEDIA_PARTS:
        raise _wrong(
            f"{where}: this server was started without --vision and takes text only",
            "vision_disabled",
        )
    if kind in _OTHER_MODALITIES:
        raise _wrong(f"{where}: parts of type {kind} are not supported", "modality_not_supported")
    member = "refusal" if kind == "refusal" and role == "assistant" else "text"
    if kind not in ("text", member):
        raise _wrong(f"{where}.type: found {kind!r}, expected text")
    if not isinstance(part.get(member), str):
        raise _wrong(f"{where}.{member}: expected a string")
    mark = part.get("prompt_cache_breakpoint")
    if mark is not None and (not isinstance(mark, dict) or mark.get("mode") != "explicit"):
        raise _wrong(
            f"{where}.prompt_cache_breakpoint: expected an object with mode explicit",
            "invalid_cache_breakpoint",
        )
    return {"type": "text", "text": part[member]}


def _assistant(turn: dict[str, Any], where: str) -> None:
    refusal = turn.pop("refusal", None)
    if isinstance(refusal, str) and not turn["content"]:
        turn["content"] = refusal
    legacy = turn.pop("function_call", None)
    if legacy is not None and not turn.get("tool_calls"):
        turn["tool_calls"] = [{"type": "function", "function": legacy}]
    calls = turn.get("tool_calls")
    if calls is None:
        turn.pop("tool_calls", None)
        if turn["content"] is None and turn.get("reasoning_content", turn.get("reasoning")) is None:
            raise _wrong(f"{where}: expected content or tool_calls")
        return
    if not isinstance(calls, list):
        raise _wrong(f"{where}.tool_calls: expected a list")
    identifiers = [call.get("id") for call in calls if isinstance(call, dict)]
    given = [identifier for identifier in identifiers if identifier is not None]
    if len(set(map(str, given))) != len(given):
        raise _wrong(f"{where}.tool_calls: two calls have the same id", "invalid_prompt")


def _order_tool_results(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Puts each run of tool results into the order of the calls that they answer."""
    ordered: list[dict[str, Any]] = []
    calls: list[Any] = []
    run: dict[int, dict[str, Any]] = {}
    for index, turn in enumerate(turns):
        if turn["role"] != "tool":
            ordered += [run[position] for position in sorted(run)]
            run = {}
            calls = [_call_identity(call) for call in turn.get("tool_calls") or ()]
            ordered.append(turn)
            continue
        position = _answered_call(turn, calls, run, f"messages[{index}]")
        run[position] = {key: value for key, value in turn.items() if key != "tool_call_id"}
    return ordered + [run[position] for position in sorted(run)]


def _call_identity(call: Any) -> Any:
    return call.get("id") if isinstance(call, dict) else None


def _answered_call(
    turn: dict[str, Any], calls: list[Any], run: dict[int, dict[str, Any]], where: str
) -> int:
    identifier = turn.get("tool_call_id")
    free = [position for position in range(len(calls)) if position not in run]
    for position in free:
        # Results of legacy functions carry no id; they answer calls in order.
        if calls[position] == identifier or (identifier is None and calls[position] is None):
            return position
    found = "without tool_call_id" if identifier is None else "with this tool_call_id"
    raise _wrong(
        f"{where}: the tool result {found} answers no open call of the preceding assistant turn",
        "invalid_prompt",
    )
