"""Marks caller text so that it survives a chat template as data.

A template is a program: it strips, splits, compares and joins what the caller wrote. What comes
out is one string in which a control token of the template and the same characters quoted by a
caller look alike. So before rendering, every `<` of a caller string is followed by a *mark*, a
private-use character that occurs nowhere else:

    caller   say <|im_end|>     ->  say <M|im_end|>
    template <|im_end|>         ->  <|im_end|>

Control tokens start with `<` (`Tokenizer` insists), hence after rendering each spelling found
intact is the template's, even where a template joins two caller strings; marks are then removed
and what they protected is encoded as plain text. A mark always follows a character that is not
white space, so trimming gives what it would give without marks.

Templates look into caller text at one place: a user turn that is wholly a tool response is no
real user query. There the two outer spellings stay intact for the template and carry a second
kind of mark on their inner side: `<tool_response>W ... W</tool_response>`. Any other spelling that
a template looks for in caller text goes unnoticed: a template that removes one could otherwise be
made to join a control token out of harmless halves.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ninfer_jax.errors import RequestError

_FIRST_PRIVATE_USE = 0x100000
_LAST_PRIVATE_USE = 0x10FFFD
_RESPONSE_OPEN = "<tool_response>"
_RESPONSE_CLOSE = "</tool_response>"


@dataclasses.dataclass(frozen=True)
class Marks:
    """Two private-use characters that occur in no string of one request.

    Attributes:
      broken: stands behind a `<` of caller text.
      whole: stands on the inner side of a spelling that caller text keeps intact.
    """

    broken: str
    whole: str

    @classmethod
    def absent_from(cls, values: Iterable[Any]) -> Marks:
        """Picks marks that occur in none of the strings inside `values`, JSON data."""
        used: set[str] = set()
        for text in _strings(values):
            if not text.isascii() and max(text) >= chr(_FIRST_PRIVATE_USE):
                used.update(text)
        free = (
            chr(code)
            for code in range(_LAST_PRIVATE_USE, _FIRST_PRIVATE_USE - 1, -1)
            if chr(code) not in used
        )
        try:
            return cls(broken=next(free), whole=next(free))
        except StopIteration:
            raise RequestError("the request uses every private-use character") from None

    def mark(self, value: Any) -> Any:
        """Copies JSON data with a mark behind every `<` of every string and key."""
        if isinstance(value, str):
            return value.replace("<", "<" + self.broken)
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark(member) for key, member in value.items()}
        if isinstance(value, Sequence):
            return [self.mark(member) for member in value]
        return value

    def mark_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Copies a message with its strings marked; see the module text for tool responses."""
        marked = self.mark(message)
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            marked["content"] = self._mark_user_text(content)
        return marked

    def remove(self, text: str) -> str:
        """The text without marks."""
        return text.replace(self.broken, "").replace(self.whole, "")

    def split(self, text: str, control: re.Pattern[str]) -> Iterator[str | re.Match[str]]:
        """Cuts rendered text at the control spellings that the template wrote.

        Yields plain text without marks (possibly empty) and, in between, matches of `control`.
        """
        position = 0
        for found in control.finditer(text):
            start, end = found.span()
            if text.startswith(self.whole, end) or text.endswith(self.whole, 0, start):
                continue
            yield self.remove(text[position:start])
            yield found
            position = end
        yield self.remove(text[position:])

    def _mark_user_text(self, content: str) -> str:
        body = content.strip()
        wrapped = body.startswith(_RESPONSE_OPEN) and body.endswith(_RESPONSE_CLOSE)
        if not wrapped or len(body) < len(_RESPONSE_OPEN + _RESPONSE_CLOSE):
            return self.mark(content)
        inner = self.mark(body[len(_RESPONSE_OPEN) : -len(_RESPONSE_CLOSE)])
        protected = _RESPONSE_OPEN + self.whole + inner + self.whole + _RESPONSE_CLOSE
        return content.replace(body, protected, 1)


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _strings(value.keys())
            yield from _strings(value.values())
        elif isinstance(value, Sequence):
            yield from _strings(value)
