"""Whether an answer to a held-out sample is exactly right."""

from __future__ import annotations

import json
from typing import Any

from ninfer_jax.demo.samples import Sample


def correct(sample: Sample, message: dict[str, Any]) -> bool:
    """Scores the message of a chat completion against the last turn of a sample.

    A tool call must have the name and the arguments, and be the only one. JSON answers are
    equal as values with keys in order. Everything else is equal as text.
    """
    turn = sample.turns[-1]
    calls = message.get("tool_calls") or []
    if turn.call is not None:
        if len(calls) != 1:
            return False
        function = calls[0]["function"]
        try:
            arguments = json.loads(function["arguments"])
        except json.JSONDecodeError:
            return False
        return (function["name"], arguments) == turn.call
    content = message.get("content") or ""
    if calls:
        return False
    if sample.task == "structured":
        try:
            return list(json.loads(content).items()) == list(json.loads(turn.answer).items())
        except (json.JSONDecodeError, AttributeError):
            return False
    return content.strip() == turn.answer
