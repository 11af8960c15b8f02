"""Where the elements of tool-call markup begin and end.

    <tool_call> <function=NAME> <parameter=KEY>VALUE</parameter> </function> </tool_call>

The format has no escape, so a value may hold the very text that ends it. `ToolMarkup` decides,
for a whole output at once and in linear time, which closer ends which value.
"""

from __future__ import annotations

import bisect
import dataclasses
import re

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
FUNCTION_OPEN = "<function="
FUNCTION_CLOSE = "</function>"
PARAMETER_OPEN = "<parameter="
PARAMETER_CLOSE = "</parameter>"

# `<` is excluded from names: a run of unfinished openers is then scanned once, not once each.
FUNCTION = re.compile(r"<function=([^<>\n]*)>")
PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")

_ELEMENT = re.compile(
    r"(?P<parameter_open><parameter=[^<>\n]+>)|(?P<parameter_close></parameter>)"
    r"|(?P<call_open><tool_call>)|(?P<call_close></tool_call>)"
    r"|(?P<function_open><function=[^<>\n]*>)|(?P<function_close></function>)"
)
_SPACE = re.compile(r"[ \t\n\r\x0b\x0c]*")
_STEP = {"open": 1, "close": -1}


@dataclasses.dataclass(frozen=True)
class _Mark:
    """A parameter opener or closer.

    Attributes:
      start, end: its place in the text.
      opens: True for an opener.
      structural: a closer followed by another parameter or the end of the function.
      framed: an opener that ends its line, or a structural closer alone on its line.
      level: calls and functions open before it.
    """

    start: int
    end: int
    opens: bool
    structural: bool
    framed: bool
    level: tuple[int, int]


class ToolMarkup:
    """The elements of one text."""

    def __init__(self, text: str):
        self.text = text
        self._marks: list[_Mark] = []
        self._index_at: dict[int, int] = {}
        self._call_marks: list[tuple[int, bool]] = []
        self._find_elements()
        self._resolve()
        self._balance: dict[int, int | None] = {}
        self._next_opener: dict[int, int | None] = {}

    def skip_space(self, position: int) -> int:
        """First position from `position` on that is not ASCII white space."""
        return _SPACE.match(self.text, position).end()

    def value_end(self, opener: int) -> int | None:
        """Start of the closer that ends the value of the parameter opened at `opener`.

        In this order, the first closer that is followed by more structure and
          1. is not balanced by an opener inside the value, and stands alone on its line, if the
             opener ends its line;
          2. is not balanced by an opener inside the value;
          3. stands alone on its line, with calls and functions inside the value balanced;
          4. the same, anywhere on its line.
        Balanced pairs inside a value and lone closers inside a line thus stay value text, and an
        opener that the value merely mentions does not swallow the rest. None: the value has no end.
        """
        index = self._index_at[opener]
        mark = self._marks[index]
        candidates = (
            self._free_framed[index + 1] if mark.framed else None,
            self._free[index + 1],
            _first_from(self._framed_at_level.get(mark.level, ()), index),
            _first_from(self._structural_at_level.get(mark.level, ()), index),
        )
        for candidate in candidates:
            if candidate is not None:
                return self._marks[candidate].start
        return None

    def rejected_end(self, call: int) -> int:
        """Where a malformed call that starts at `call` ends.

        At the closer that balances it outside parameter values, or else before the next call
        opener outside parameter values, or else at the end of the text.
        """
        if call not in self._balance:
            self._walk(call)
        balanced = self._balance[call]
        if balanced is not None:
            return balanced
        following = self._next_opener[call]
        return len(self.text) if following is None else following

    def _find_elements(self) -> None:
        calls = functions = 0
        for found in _ELEMENT.finditer(self.text):
            element, _, side = found.lastgroup.partition("_")
            if element == "call":
                calls += _STEP[side]
                self._call_marks.append((found.start(), side == "open"))
            elif element == "function":
                functions += _STEP[side]
            else:
                self._index_at[found.start()] = len(self._marks)
                self._marks.append(self._mark(found, side == "open", (calls, functions)))

    def _mark(self, found: re.Match[str], opens: bool, level: tuple[int, int]) -> _Mark:
        text, start, end = self.text, found.start(), found.end()
        line_ends = text.startswith(("\n", "\r\n"), end)
        if opens:
            return _Mark(start, end, True, False, line_ends, level)
        after = self.skip_space(end)
        structural = text.startswith((PARAMETER_OPEN, FUNCTION_CLOSE), after)
        framed = text.endswith("\n", 0, start) and line_ends
        return _Mark(start, end, False, structural, framed and structural, level)

    def _resolve(self) -> None:
        """Fills, for every index, the first closer from there on that no opener balances.

        Example: marks  0:<p>  1:</p>  2:</p> structural.  The value that starts at index 0 has
        opener 0 balanced by 1, so the first free closer from 0 on is 2.
        """
        marks = self._marks
        balanced_by = _match_pairs(marks)
        self._free: list[int | None] = [None] * (len(marks) + 1)
        self._free_framed: list[int | None] = [None] * (len(marks) + 1)
        self._structural_at_level: dict[tuple[int, int], list[int]] = {}
        self._framed_at_level: dict[tuple[int, int], list[int]] = {}
        for index in range(len(marks) - 1, -1, -1):
            mark = marks[index]
            if mark.opens:
                closer = balanced_by.get(index)
                if closer is not None:
                    self._free[index] = self._free[closer + 1]
                    self._free_framed[index] = self._free_framed[closer + 1]
                continue
            self._free[index] = index if mark.structural else self._free[index + 1]
            self._free_framed[index] = index if mark.framed else self._free_framed[index + 1]
        for index, mark in enumerate(marks):
            if mark.structural:
                self._structural_at_level.setdefault(mark.level, []).append(index)
            if not mark.opens and mark.framed:
                self._framed_at_level.setdefault(mark.level, []).append(index)

    def _walk(self, call: int) -> None:
        """Matches call openers and closers outside parameter values, from `call` on.

        Stops once `call` is balanced; otherwise every later opener is settled by the same walk,
        which keeps many unclosed calls linear.
        """
        marks = self._marks
        open_calls: list[int] = []
        last_opener: int | None = None
        at = bisect.bisect_left(self._call_marks, (call, False))
        parameter = bisect.bisect_left(marks, call, key=lambda mark: mark.start)
        while at < len(self._call_marks):
            position, opens = self._call_marks[at]
            while parameter < len(marks) and marks[parameter].start < position:
                mark = marks[parameter]
                parameter += 1
                if not mark.opens:
                    continue
                end = self.value_end(mark.start)
                if end is None:
                    at = len(self._call_marks)
                    break
                parameter = self._index_at[end] + 1
                at = bisect.bisect_left(self._call_marks, (end, False), lo=at)
                break
            else:
                at += 1
                if opens:
                    if last_opener is not None:
                        self._next_opener[last_opener] = position
                    last_opener = position
                    open_calls.append(position)
                elif open_calls:
                    opener = open_calls.pop()
                    self._balance[opener] = position + len(CALL_CLOSE)
                    if opener == call:
                        break
        for opener in open_calls:
            self._balance[opener] = None
        if last_opener is not None:
            self._next_opener.setdefault(last_opener, None)


def _match_pairs(marks: list[_Mark]) -> dict[int, int]:
    """Index of each balanced opener to the index of its closer."""
    pairs: dict[int, int] = {}
    unclosed: list[int] = []
    for index, mark in enumerate(marks):
        if mark.opens:
            unclosed.append(index)
        elif unclosed:
            pairs[unclosed.pop()] = index
    return pairs


def _first_from(indices: list[int] | tuple[int, ...], index: int) -> int | None:
    place = bisect.bisect_left(indices, index)
    return indices[place] if place < len(indices) else None
