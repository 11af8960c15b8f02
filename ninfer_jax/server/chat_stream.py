"""The chunks of a streamed chat completion, in their order.

    role | prompt progress | reasoning | content | all tool calls | finish | usage | [DONE]

A failure after the start is one in-band error, and then neither finish chunk nor `[DONE]`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import msgspec
from msgspec import UNSET, UnsetType

from ninfer_jax.engine.request import Delta, Finished, Progress
from ninfer_jax.server import schemas
from ninfer_jax.server.errors import error_body
from ninfer_jax.server.finish import finish_reason, tool_calls_of
from ninfer_jax.server.generation import Generation
from ninfer_jax.server.timings import final_timings, measured

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Writes chunks with one id, creation time and model."""

    def __init__(self, completion_id: str, created: int, model: str, *, include_usage: bool):
        self._constant = {"id": completion_id, "created": created, "model": model}
        self._no_usage: UnsetType | None = None if include_usage else UNSET

    def delta(
        self,
        delta: schemas.Delta,
        *,
        finish: str | None = None,
        timings: schemas.Timings | UnsetType = UNSET,
        progress: schemas.PromptProgress | UnsetType = UNSET,
    ) -> bytes:
        """A chunk with one choice."""
        return _event(
            schemas.Chunk(
                **self._constant,
                choices=[schemas.ChunkChoice(delta=delta, finish_reason=finish)],
                usage=self._no_usage,
                timings=timings,
                prompt_progress=progress,
            )
        )

    def usage(self, usage: schemas.Usage, timings: schemas.Timings) -> bytes:
        """The last chunk, where usage was asked for."""
        return _event(schemas.Chunk(**self._constant, choices=[], usage=usage, timings=timings))


class StreamClock:
    """What a stream can tell of time before the engine has finished.

    Admission counts as the first event of the engine if nothing was processed before it, else
    as submission.
    """

    def __init__(self, clock: Callable[[], float], submitted: float):
        self._clock = clock
        self._admitted = submitted
        self._first: float | None = None
        self._latest = submitted
        self.processed = 0
        self.total = 0
        self.cached = 0
        self.tokens = 0

    def progress(self, event: Progress) -> float:
        """Notes progress; returns milliseconds since admission."""
        now = self._clock()
        if event.processed == event.cached:
            self._admitted = now
        self.processed, self.total, self.cached = event.processed, event.total, event.cached
        return (now - self._admitted) * 1000

    def delta(self, event: Delta) -> schemas.Timings:
        """Notes committed tokens; returns cumulative timings."""
        self._latest = self._clock()
        if self._first is None:
            self._first = self._latest
        self.tokens += len(event.token_ids)
        return measured(
            cached=self.cached,
            prompt=self.total,
            prompt_seconds=self._first - self._admitted,
            predicted=self.tokens,
            predicted_seconds=self._latest - self._first,
        )


async def stream_chunks(
    generation: Generation,
    writer: ChunkWriter,
    clock: StreamClock,
    *,
    include_usage: bool,
    timings_per_token: bool,
    return_progress: bool,
) -> AsyncGenerator[bytes, None]:
    """The events of one stream, in-band errors included."""
    yield writer.delta(schemas.Delta(role="assistant", content=""))
    progress_started = False
    try:
        async for event in generation.events():
            if isinstance(event, Progress):
                milliseconds = clock.progress(event)
                if not return_progress:
                    continue
                if not progress_started and event.processed > event.cached:
                    yield _progress(writer, event, event.cached, 0.0)
                progress_started = True
                yield _progress(writer, event, event.processed, milliseconds)
            elif isinstance(event, Delta):
                snapshot = clock.delta(event)
                timings = snapshot if timings_per_token else UNSET
                if event.reasoning:
                    reasoning = schemas.Delta(reasoning_content=event.reasoning)
                    yield writer.delta(reasoning, timings=timings)
                if event.content:
                    yield writer.delta(schemas.Delta(content=event.content), timings=timings)
            elif isinstance(event, Finished):
                for chunk in _tail(generation, writer, event, include_usage=include_usage):
                    yield chunk
    except Exception as error:
        yield b"data: " + error_body(error) + b"\n\n"
        return
    yield DONE


def _tail(
    generation: Generation, writer: ChunkWriter, finished: Finished, *, include_usage: bool
) -> list[bytes]:
    calls = tool_calls_of(generation.prepared.decoder, indexed=True)
    timings = final_timings(finished)
    chunks = [writer.delta(schemas.Delta(tool_calls=calls))] if calls else []
    reason = finish_reason(finished.reason, has_calls=bool(calls))
    if include_usage:
        chunks.append(writer.delta(schemas.Delta(), finish=reason))
        chunks.append(writer.usage(schemas.usage_of(finished.usage), timings))
    else:
        chunks.append(writer.delta(schemas.Delta(), finish=reason, timings=timings))
    return chunks


def _progress(writer: ChunkWriter, event: Progress, processed: int, milliseconds: float) -> bytes:
    progress = schemas.PromptProgress(event.total, event.cached, processed, milliseconds)
    return writer.delta(schemas.Delta(), progress=progress)


def _event(chunk: schemas.Chunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
