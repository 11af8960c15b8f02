"""Splits output text into the reasoning and the answer channel.

With thinking on, the open marker is part of the prompt, so output starts inside reasoning and the
first `</think>` ends it; white space at the start of the answer is dropped. With thinking off,
output is answer from the start and a stray `</think>` is ordinary text.
"""

from __future__ import annotations

from ninfer_jax.text.matching import StreamMatcher

THINK_CLOSE = "</think>"
ASCII_WHITESPACE = " \t\n\r\x0b\x0c"


class ChannelSplitter:
    """Gives each piece of text to its channel, independent of how the stream is cut.

    Attributes:
      in_reasoning: True until `</think>` is complete.
    """

    def __init__(self, *, thinking_open: bool):
        self.in_reasoning = thinking_open
        self._close = StreamMatcher(THINK_CLOSE)
        self._held = ""
        self._at_answer_start = thinking_open

    def push(self, text: str) -> tuple[str, str]:
        """Adds text; returns what is now known to be (reasoning, answer)."""
        if not self.in_reasoning:
            return "", self._answer(text)
        consumed = self._close.feed(text)
        known = self._held + text
        if consumed is None:
            end = len(known) - self._close.matched
            self._held = known[end:]
            return known[:end], ""
        end = len(self._held) + consumed
        self._held = ""
        self.in_reasoning = False
        return known[: end - len(THINK_CLOSE)], self._answer(known[end:])

    def finish(self) -> str:
        """Ends the output; returns reasoning text that was held back."""
        held, self._held = self._held, ""
        return held

    def _answer(self, text: str) -> str:
        if self._at_answer_start:
            text = text.lstrip(ASCII_WHITESPACE)
            self._at_answer_start = not text
        return text
