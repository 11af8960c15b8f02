"""One training or test conversation, and how a problem falls into train or held-out."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable
from typing import Any, Literal

Split = Literal["train", "held_out"]

HELD_OUT_SHARE = 16
"""One problem in this many is held out, chosen by its key."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """A question and its answer.

    Attributes:
      question: message that precedes the answer: a user message or a tool result.
      role: "user" or "tool".
      reasoning: text of the think block.
      answer: visible text.
      call: (function name, arguments) of a tool call, or None.
    """

    question: str
    reasoning: str
    answer: str
    role: str = "user"
    call: tuple[str, dict[str, str]] | None = None


@dataclasses.dataclass(frozen=True)
class Sample:
    """A conversation; the last turn is the one that is scored.

    Attributes:
      task: name in the registry of `ninfer_jax/demo/generator.py`.
      key: identifies the underlying problem; decides the split.
      turns: at least one.
      tools: functions declared in the system prompt.
      system: the caller's system text; empty for none.
      thinking: whether the answer is given with an open think block.
      images: pixel arrays for image questions; empty for text tasks.
    """

    task: str
    key: str
    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()
    system: str = ""
    thinking: bool = True
    images: tuple[Any, ...] = ()


Task = Callable[[random.Random], Sample]


def split_of(key: str) -> Split:
    """The split of a problem; a function of its key alone, so the two are disjoint."""
    return "held_out" if zlib.crc32(key.encode()) % HELD_OUT_SHARE == 0 else "train"


def messages_of(sample: Sample, *, with_answer: bool) -> list[dict[str, Any]]:
    """The conversation as chat messages; the last answer only if asked for."""
    messages: list[dict[str, Any]] = []
    if sample.system:
        messages.append({"role": "system", "content": sample.system})
    for index, turn in enumerate(sample.turns):
        messages.append({"role": turn.role, "content": turn.question})
        if index + 1 == len(sample.turns) and not with_answer:
            break
        answer: dict[str, Any] = {
            "role": "assistant",
            "content": turn.answer,
            "reasoning_content": turn.reasoning,
        }
        if turn.call is not None:
            name, arguments = turn.call
            answer["tool_calls"] = [
                {"type": "function", "function": {"name": name, "arguments": arguments}}
            ]
        messages.append(answer)
    return messages
