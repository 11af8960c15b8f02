"""How an output ended, in the words of the wire, and the calls that it holds."""

from __future__ import annotations

import secrets

from msgspec import UNSET

from ninfer_jax.engine.request import FinishReason
from ninfer_jax.server import schemas
from ninfer_jax.text.output import OutputDecoder

_LIMITED = (FinishReason.OUTPUT_LIMIT, FinishReason.CONTEXT_CAPACITY)


def finish_reason(reason: FinishReason, *, has_calls: bool) -> str:
    """`length` wins over calls: what was cut may have held more of them."""
    if reason in _LIMITED:
        return "length"
    return "tool_calls" if has_calls else "stop"


def tool_calls_of(decoder: OutputDecoder, *, indexed: bool) -> list[schemas.ToolCall]:
    """The calls of a finished output, with fresh ids."""
    return [
        schemas.ToolCall(
            id=f"call_{secrets.token_hex(8)}",
            function=schemas.Function(call.name, call.arguments),
            index=index if indexed else UNSET,
        )
        for index, call in enumerate(decoder.tool_calls)
    ]
