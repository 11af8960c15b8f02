"""The output decoder of one request: committed tokens in, text of two channels out.

    token -> bytes -> characters -> reasoning | answer -> stop strings -> tool calls

Every stage holds back what it cannot decide yet, and the result is the same for every way of
cutting the output into tokens, except that a stop string ends it at the token that completes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_jax.text.channels import ChannelSplitter
from ninfer_jax.text.detokenizer import Detokenizer
from ninfer_jax.text.stop_strings import StopScanner
from ninfer_jax.text.tokenizer import Tokenizer
from ninfer_jax.text.tool_calls import ToolCall, ToolCallHolder, ToolParse
from ninfer_jax.text.tool_set import ToolSet
from ninfer_jax.text.verdict import TokenVerdict


class OutputDecoder:
    """Decodes one output; implements `ninfer_jax.engine.request.TokenDecoder`.

    Attributes:
      reasoning_tokens: tokens pushed while in the reasoning channel, with the one that ends it.
      content_tokens: the other tokens.
      tool_calls: calls of the answer, complete after `finish`.
      tool_parse: statistics of reading them, complete after `finish`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        thinking_open: bool,
        stop_strings: Sequence[str] = (),
        reasoning_stop_strings: Sequence[str] | None = None,
        tools: ToolSet | None = None,
    ):
        """Starts inside reasoning if the prompt ends with an open think marker.

        `stop_strings` end the output in either channel; `reasoning_stop_strings`, if given, take
        their place in the reasoning channel. Without tools, tool markup is plain text.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer()
        self._channels = ChannelSplitter(thinking_open=thinking_open)
        self._reasoning_stops = StopScanner(
            stop_strings if reasoning_stop_strings is None else reasoning_stop_strings
        )
        self._answer_stops = StopScanner(stop_strings)
        self._tool_holder = ToolCallHolder(tools) if tools else None
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._finished = False
        self.reasoning_tokens = 0
        self.content_tokens = 0
        self.tool_calls: list[ToolCall] = []
        self.tool_parse = ToolParse()

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the output, or None."""
        if self._reasoning_stops.match is not None:
            return self._reasoning_stops.match
        return self._answer_stops.match

    @property
    def in_reasoning(self) -> bool:
        """True while the reasoning channel is open."""
        return self._channels.in_reasoning

    def push(self, token_id: int) -> TokenVerdict:
        """Adds one committed token that is not a stop token.

        After a stop string, further tokens are counted by nobody and change nothing.
        """
        if self.stop_match is not None:
            return TokenVerdict.STOP_STRING
        if self._channels.in_reasoning:
            self.reasoning_tokens += 1
        else:
            self.content_tokens += 1
        data = self._tokenizer.token_bytes(token_id, hide_special=True)
        self._advance(self._detokenizer.push(data))
        return TokenVerdict.CONTINUE if self.stop_match is None else TokenVerdict.STOP_STRING

    def take(self) -> tuple[str, str]:
        """Returns and clears the text now safe to show, as (reasoning, content)."""
        taken = "".join(self._reasoning), "".join(self._content)
        self._reasoning.clear()
        self._content.clear()
        return taken

    def finish(self) -> tuple[str, str]:
        """Ends the output: returns all text not taken yet, as (reasoning, content).

        Held-back text goes to the channel it belongs to; tool calls are read.
        """
        if not self._finished:
            self._finished = True
            if self.stop_match is None:
                self._advance(self._detokenizer.finish())
            if self.stop_match is None:
                self._reasoning.append(self._reasoning_stops.push(self._channels.finish()))
            self._reasoning.append(self._reasoning_stops.finish())
            self._show_answer(self._answer_stops.finish())
            if self._tool_holder is not None:
                parsed = self._tool_holder.finish()
                self._content.append(parsed.content)
                self.tool_calls = list(parsed.calls)
                self.tool_parse = parsed.parse
        return self.take()

    def _advance(self, text: str) -> None:
        if not text:
            return
        was_in_reasoning = self._channels.in_reasoning
        reasoning, answer = self._channels.push(text)
        if was_in_reasoning:
            self._reasoning.append(self._reasoning_stops.push(reasoning))
            if self._reasoning_stops.match is not None:
                return
            if not self._channels.in_reasoning:
                self._reasoning.append(self._reasoning_stops.finish())
        if answer:
            self._show_answer(self._answer_stops.push(answer))

    def _show_answer(self, text: str) -> None:
        if not text:
            return
        self._content.append(text if self._tool_holder is None else self._tool_holder.push(text))
