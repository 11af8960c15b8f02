"""Reads tool calls out of the answer text; see `tool_markup` for the grammar.

Every well-formed, declared block becomes a call. Every other block is given back verbatim as
content, at its place. Nothing is ever lost, and markup inside a value never creates a call.
"""

from __future__ import annotations

import dataclasses
import enum

from ninfer_jax.text.channels import ASCII_WHITESPACE
from ninfer_jax.text.json_text import quote
from ninfer_jax.text.matching import StreamMatcher
from ninfer_jax.text.tool_markup import (
    CALL_CLOSE,
    CALL_OPEN,
    FUNCTION,
    FUNCTION_CLOSE,
    FUNCTION_OPEN,
    PARAMETER,
    PARAMETER_CLOSE,
    PARAMETER_OPEN,
    ToolMarkup,
)
from ninfer_jax.text.tool_set import ToolSet, is_valid_name
from ninfer_jax.text.tool_values import convert


class FallbackReason(enum.Enum):
    """Why markup did not become a call; the value is the word of the request log."""

    NONE = "none"
    MALFORMED_STRUCTURE = "malformed_structure"
    DUPLICATE_PARAMETER = "duplicate_parameter"
    INVALID_TOOL_NAME = "invalid_tool_name"
    UNDECLARED_TOOL = "undeclared_tool"
    TRAILING_CONTENT = "trailing_content"


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """One call: a declared name and its arguments as the text of a JSON object."""

    name: str
    arguments: str


@dataclasses.dataclass(frozen=True)
class ToolParse:
    """Statistics of one output for the request log.

    Attributes:
      marker_seen: the answer held a complete `<tool_call>` while tools were active.
      structured_call_count: calls committed.
      rejected_block_count: blocks given back as content.
      trailing_content_count: 1 if text follows the last block, else 0.
      empty_arguments_omitted: parameters left out because they were empty.
      schema_mismatch_arguments: parameters whose value is not of a declared type.
      fallback_reason: the first failure, if no call was committed.
    """

    marker_seen: bool = False
    structured_call_count: int = 0
    rejected_block_count: int = 0
    trailing_content_count: int = 0
    empty_arguments_omitted: int = 0
    schema_mismatch_arguments: int = 0
    fallback_reason: FallbackReason = FallbackReason.NONE


@dataclasses.dataclass(frozen=True)
class ParsedText:
    """Answer text taken apart: what is shown, what is called, what went wrong."""

    content: str
    calls: tuple[ToolCall, ...]
    parse: ToolParse


class ToolCallHolder:
    """Lets answer text through up to the first `<tool_call>` and parses the rest at the end.

    White space before a possible call and the start of a possible marker are held back, since a
    committed call trims the text before it.
    """

    def __init__(self, tools: ToolSet):
        self._tools = tools
        self._marker = StreamMatcher(CALL_OPEN)
        self._space: list[str] = []
        self._region: list[str] | None = None

    def push(self, text: str) -> str:
        """Adds answer text; returns the part that is certainly content."""
        if self._region is not None:
            self._region.append(text)
            return ""
        known = CALL_OPEN[: self._marker.matched] + text
        carried = len(known) - len(text)
        consumed = self._marker.feed(text)
        if consumed is None:
            end = len(known) - self._marker.matched
        else:
            end = carried + consumed - len(CALL_OPEN)
        shown = known[:end].rstrip(ASCII_WHITESPACE)
        space = known[len(shown) : end]
        if shown:
            shown = "".join(self._space) + shown
            self._space = []
        self._space.append(space)
        if consumed is not None:
            self._region = [*self._space, known[end:]]
            self._space = []
        return shown

    def finish(self) -> ParsedText:
        """Ends the answer: what was held back, read."""
        if self._region is not None:
            return parse_tool_calls("".join(self._region), self._tools)
        held = "".join(self._space) + CALL_OPEN[: self._marker.matched]
        self._space = []
        self._marker = StreamMatcher(CALL_OPEN)
        return ParsedText(held, (), ToolParse())


def parse_tool_calls(text: str, tools: ToolSet) -> ParsedText:
    """Reads all calls of a complete answer, in time linear in its length."""
    markup = ToolMarkup(text)
    pieces: list[str | ToolCall] = []
    position = 0
    rejections: list[FallbackReason] = []
    last_block_end: int | None = None
    omitted = mismatched = 0
    marker_seen = False
    search = 0
    while (start := text.find(CALL_OPEN, search)) >= 0:
        marker_seen = True
        inside = markup.skip_space(start + len(CALL_OPEN))
        if not text.startswith(FUNCTION_OPEN, inside):
            # A marker that is only mentioned, unless the output was cut inside the next one.
            if FUNCTION_OPEN.startswith(text[inside : inside + len(FUNCTION_OPEN)]):
                rejections.append(FallbackReason.MALFORMED_STRUCTURE)
            search = start + len(CALL_OPEN)
            continue
        block = _read_block(markup, start, tools)
        if block.call is None:
            rejections.append(block.fault)
        else:
            pieces += [text[position:start], block.call]
            position = block.end
            omitted += block.omitted
            mismatched += block.mismatched
        search = last_block_end = block.end
    pieces.append(text[position:])
    calls = tuple(piece for piece in pieces if isinstance(piece, ToolCall))
    trailing = last_block_end is not None and bool(text[last_block_end:].strip(ASCII_WHITESPACE))
    return ParsedText(
        content=_content(pieces),
        calls=calls,
        parse=ToolParse(
            marker_seen=marker_seen,
            structured_call_count=len(calls),
            rejected_block_count=len(rejections),
            trailing_content_count=int(trailing),
            empty_arguments_omitted=omitted,
            schema_mismatch_arguments=mismatched,
            fallback_reason=rejections[0] if rejections and not calls else FallbackReason.NONE,
        ),
    )


def _content(pieces: list[str | ToolCall]) -> str:
    """Joins the text around calls: trimmed before a call, dropped where it is only white space."""
    content: list[str] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, ToolCall):
            continue
        before_call = index + 1 < len(pieces)
        after_call = index > 0
        if before_call:
            piece = piece.rstrip(ASCII_WHITESPACE)
        if after_call and not piece.strip(ASCII_WHITESPACE):
            continue
        content.append(piece)
    return "".join(content)


@dataclasses.dataclass(frozen=True)
class _Block:
    end: int
    fault: FallbackReason = FallbackReason.NONE
    call: ToolCall | None = None
    omitted: int = 0
    mismatched: int = 0


def _read_block(markup: ToolMarkup, start: int, tools: ToolSet) -> _Block:
    read = _read_structure(markup, start)
    if read is None:
        return _Block(markup.rejected_end(start), FallbackReason.MALFORMED_STRUCTURE)
    name, parameters, end = read
    if not is_valid_name(name, tools.longest_name):
        return _Block(end, FallbackReason.INVALID_TOOL_NAME)
    if name not in tools:
        return _Block(end, FallbackReason.UNDECLARED_TOOL)
    values: dict[str, str] = {}
    for key, value in parameters:
        if values.setdefault(key, value) != value:
            return _Block(end, FallbackReason.DUPLICATE_PARAMETER)
    converted = [(key, convert(value, tools.type_hint(name, key))) for key, value in values.items()]
    members = [f"{quote(key)}: {value.json}" for key, value in converted if value.json is not None]
    return _Block(
        end,
        call=ToolCall(name, "{" + ", ".join(members) + "}"),
        omitted=len(converted) - len(members),
        mismatched=sum(value.mismatched for _, value in converted),
    )


def _read_structure(
    markup: ToolMarkup, start: int
) -> tuple[str, list[tuple[str, str]], int] | None:
    """Function name, parameters as (key, text), and the end of a well-formed block, or None."""
    text = markup.text
    function = FUNCTION.match(text, markup.skip_space(start + len(CALL_OPEN)))
    if function is None:
        return None
    parameters: list[tuple[str, str]] = []
    position = markup.skip_space(function.end())
    while text.startswith(PARAMETER_OPEN, position):
        parameter = PARAMETER.match(text, position)
        closer = markup.value_end(position) if parameter else None
        if parameter is None or closer is None:
            return None
        parameters.append((parameter[1], _unframe(text[parameter.end() : closer])))
        position = markup.skip_space(closer + len(PARAMETER_CLOSE))
    if not text.startswith(FUNCTION_CLOSE, position):
        return None
    position = markup.skip_space(position + len(FUNCTION_CLOSE))
    if not text.startswith(CALL_CLOSE, position):
        return None
    return function[1], parameters, position + len(CALL_CLOSE)


def _unframe(value: str) -> str:
    """Drops one line break at the start and one at the end; the rest belongs to the value."""
    for line_break in ("\r\n", "\n"):
        if value.startswith(line_break):
            value = value[len(line_break) :]
            break
    for line_break in ("\r\n", "\n"):
        if value.endswith(line_break):
            return value[: -len(line_break)]
    return value
