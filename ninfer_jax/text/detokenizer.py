"""Incremental detokenizer: bytes of tokens to text, whole characters only."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Decodes a stream of UTF-8 bytes that may be cut anywhere.

    The concatenation of all results equals `whole_stream.decode("utf-8", "replace")` for every
    cut: bytes of an unfinished character wait, bytes that no character can contain become U+FFFD
    at once, and `finish` turns a leftover into one U+FFFD.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """Adds bytes; returns the characters they complete."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Ends the stream; returns U+FFFD if an unfinished character was waiting."""
        return self._decoder.decode(b"", final=True)
