"""Stop strings: the text before the first one, and nothing after."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_jax.text.matching import StreamMatcher


class StopScanner:
    """Looks for stop strings in the text of one channel, fed token by token.

    The match completed by the earliest token wins; among those completed by one token, the one
    that starts first; among those, the one declared first. Text that may still become a stop
    string is held back.

    Attributes:
      match: the stop string found, or None.
    """

    def __init__(self, stop_strings: Sequence[str]):
        self._stop_strings = tuple(stop_strings)
        self._matchers = [StreamMatcher(text) for text in self._stop_strings]
        self._held = ""
        self.match: str | None = None

    def push(self, text: str) -> str:
        """Adds the text of one token; returns text that can no longer be part of a stop string.

        Once `match` is set, the result ends before the stop string and later calls return "".
        """
        if self.match is not None:
            return ""
        if not self._matchers:
            return text
        known = self._held + text
        found: list[tuple[int, int]] = []
        for order, matcher in enumerate(self._matchers):
            consumed = matcher.feed(text)
            if consumed is not None:
                start = len(self._held) + consumed - len(matcher.pattern)
                found.append((start, order))
        if found:
            start, order = min(found)
            self.match = self._stop_strings[order]
            self._held = ""
            return known[:start]
        end = len(known) - max(matcher.matched for matcher in self._matchers)
        self._held = known[end:]
        return known[:end]

    def finish(self) -> str:
        """Ends the channel; returns the text held back."""
        held, self._held = self._held, ""
        return held
