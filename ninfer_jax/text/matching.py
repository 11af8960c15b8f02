"""Finds fixed strings in text that arrives in pieces.

One automaton per string (Knuth-Morris-Pratt), so the cost is linear and the state after any
text does not depend on how the text was cut.
"""

from __future__ import annotations


class StreamMatcher:
    """Follows how much of one string the end of a stream has matched.

    Attributes:
      pattern: the string looked for, not empty.
      matched: length of the longest suffix of the stream that is a prefix of `pattern`, short of
        a whole match. These characters must be held back: they may yet become the pattern.
    """

    def __init__(self, pattern: str):
        if not pattern:
            raise ValueError("pattern must not be empty")
        self.pattern = pattern
        self.matched = 0
        self._fallback = _fallbacks(pattern)

    def feed(self, text: str) -> int | None:
        """Adds text up to and including the end of the first match.

        Returns the number of characters of `text` that were consumed if they complete the
        pattern; the matcher must not be fed again after that. Returns None if all of `text` was
        consumed without a match.
        """
        pattern, fallback = self.pattern, self._fallback
        state = self.matched
        first = pattern[0]
        position = 0
        length = len(text)
        while position < length:
            if state == 0:
                position = text.find(first, position)
                if position < 0:
                    break
            character = text[position]
            while state and pattern[state] != character:
                state = fallback[state]
            if pattern[state] == character:
                state += 1
            position += 1
            if state == len(pattern):
                self.matched = 0
                return position
        self.matched = state
        return None


def _fallbacks(pattern: str) -> list[int]:
    """Entry n: length of the longest proper prefix of pattern[:n] that is also its suffix."""
    fallback = [0] * (len(pattern) + 1)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[length] != pattern[position]:
            length = fallback[length]
        if pattern[length] == pattern[position]:
            length += 1
        fallback[position + 1] = length
    return fallback
