"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time

import msgspec
from msgspec import UNSET

from ninfer_jax.engine.request import Delta, Finished
from ninfer_jax.errors import NInferError
from ninfer_jax.server import schemas
from ninfer_jax.server.chat_stream import ChunkWriter, StreamClock, stream_chunks
from ninfer_jax.server.finish import finish_reason, tool_calls_of
from ninfer_jax.server.generation import Generation
from ninfer_jax.server.prepare import ParsedChat, parse_chat
from ninfer_jax.server.service import Service
from ninfer_jax.server.stream import Exchange
from ninfer_jax.server.timings import final_timings

PROTOCOL = "openai-chat"


async def chat_completions(service: Service, exchange: Exchange) -> None:
    """Answers one request. Raises `NInferError` or `ClientGoneError` before the reply starts."""
    parsed = await _read(service, exchange)
    request = parsed.request
    async with Generation(service, PROTOCOL) as generation:
        await generation.prepare(parsed, exchange.gone)
        generation.submit(stream=bool(request.stream))
        completion_id = f"chatcmpl-{secrets.token_hex(16)}"
        if not request.stream:
            body = await exchange.while_connected(
                _complete(generation, completion_id, request.model)
            )
            await exchange.reply(body)
            return
        writer = ChunkWriter(
            completion_id, int(time.time()), request.model, include_usage=request.include_usage
        )
        await exchange.reply_events(
            stream_chunks(
                generation,
                writer,
                StreamClock(service.clock, generation.submitted),
                include_usage=request.include_usage,
                timings_per_token=bool(request.timings_per_token),
                return_progress=bool(request.return_progress),
            )
        )


async def _read(service: Service, exchange: Exchange) -> ParsedChat:
    """Reads, parses and checks a body; what is wrong here takes neither id nor place."""
    try:
        body = await exchange.body(service.config.max_request_bytes)
        service.require_ready()
        parsed = await service.offload(parse_chat, body)
        service.require_model(parsed.request.model)
    except NInferError as error:
        service.metrics.ended("rejected")
        service.log.ended_early(PROTOCOL, None, error.status, error.code, started=False)
        raise
    return parsed


async def _complete(generation: Generation, completion_id: str, model: str) -> bytes:
    """Collects the whole output into one reply."""
    reasoning: list[str] = []
    content: list[str] = []
    finished: Finished | None = None
    async for event in generation.events():
        if isinstance(event, Delta):
            reasoning.append(event.reasoning)
            content.append(event.content)
        elif isinstance(event, Finished):
            finished = event
    if finished is None:
        raise RuntimeError("the engine ended a request without an outcome")
    calls = tool_calls_of(generation.prepared.decoder, indexed=False)
    message = schemas.Message(
        content="".join(content) or (None if calls else ""),
        reasoning_content="".join(reasoning) or UNSET,
        tool_calls=calls or UNSET,
    )
    reason = finish_reason(finished.reason, has_calls=bool(calls))
    return msgspec.json.encode(
        schemas.Completion(
            id=completion_id,
            created=int(time.time()),
            model=model,
            choices=[schemas.Choice(message=message, finish_reason=reason)],
            usage=schemas.usage_of(finished.usage),
            timings=final_timings(finished),
        )
    )
