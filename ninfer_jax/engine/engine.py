"""The engine as the server sees it: submit, cancel, counters, health, close."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

from ninfer_jax.engine.inbox import Inbox
from ninfer_jax.engine.pages import PAGE_TOKENS, pages_for
from ninfer_jax.engine.request import EngineCounters, EngineInfo, Request, Sink, total_tokens
from ninfer_jax.engine.roster import Roster
from ninfer_jax.engine.scheduler import Scheduler
from ninfer_jax.engine.sequence import Sequence
from ninfer_jax.engine.units import Programs
from ninfer_jax.engine.worker import SHUTTING_DOWN, Worker
from ninfer_jax.errors import RequestError


class Engine:
    """Implements `ninfer_jax.engine.request.Engine` on compiled programs.

    The constructor starts the one worker thread; from then on only that thread touches
    `programs`. All public methods may be called from any thread and none waits for the
    device, except `close`.

    Sizes come from `info`: `max_concurrency` lanes and state slots 0 .. lanes - 1, and
    `kv_capacity_tokens / 64` pages, numbered from 0. The pool must hold one request of
    `max_context` tokens, so that every request that is accepted can run when alone.
    """

    def __init__(
        self,
        info: EngineInfo,
        programs: Programs,
        *,
        rounds_per_dispatch: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        if programs.lane_buckets[-1] < info.max_concurrency:
            raise ValueError(
                f"{info.max_concurrency} lanes need a program for as many rows, the largest "
                f"has {programs.lane_buckets[-1]}"
            )
        if info.kv_capacity_tokens % PAGE_TOKENS:
            raise ValueError(
                f"the KV capacity is whole pages of {PAGE_TOKENS} tokens, got "
                f"{info.kv_capacity_tokens}"
            )
        if info.kv_capacity_tokens < info.max_context:
            raise ValueError(
                f"the KV capacity of {info.kv_capacity_tokens} tokens does not hold one "
                f"request of {info.max_context}"
            )
        self.info = info
        self._clock = clock
        self._inbox = Inbox()
        self._worker = Worker(
            programs,
            self._inbox,
            Roster(
                total_pages=info.kv_capacity_tokens // PAGE_TOKENS,
                total_slots=info.max_concurrency,
            ),
            Scheduler(overtake_limit=info.max_concurrency, rounds_per_dispatch=rounds_per_dispatch),
            clock,
        )
        self._thread = threading.Thread(target=self._worker.run, name="ninfer-engine", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """True while requests are accepted: neither failed nor closing."""
        return self._inbox.accepting

    def submit(self, request: Request, sink: Sink) -> None:
        """Queues a request; from here on `sink` gets its events.

        Raises `RequestError` for a request that could never run, `UnavailableError` if the
        engine has failed or is closing; then `sink` is never called.
        """
        self._require_possible(request)
        self._inbox.submit(Sequence(request, sink, self._clock()))

    def cancel(self, request_id: int) -> None:
        """Asks that a request ends at the next unit boundary; unknown ids are ignored."""
        self._inbox.cancel(request_id)

    def counters(self) -> EngineCounters:
        """A snapshot in which every open request is either waiting or running."""

        def look(untaken: int) -> EngineCounters:
            snapshot = self._worker.snapshot
            return dataclasses.replace(snapshot, waiting=snapshot.waiting + untaken)

        return self._inbox.observe(look)

    def close(self, *, drain_seconds: float = 0.0) -> None:
        """Refuses new requests, fails waiting ones at once and running ones after
        `drain_seconds`, and returns when the worker has ended. May be called again; the
        earliest end of draining counts.
        """
        self._inbox.close(SHUTTING_DOWN, self._clock() + drain_seconds)
        # A sink runs on the worker's own thread; it may close the engine, but not wait for it.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _require_possible(self, request: Request) -> None:
        prompt = len(request.prompt_ids)
        if prompt == 0:
            raise RequestError("the prompt is empty; send at least one token", param="messages")
        if request.max_tokens < 0:
            raise RequestError(
                f"the output limit is {request.max_tokens}; give 0 or more", param="max_tokens"
            )
        total = total_tokens(request.prompt_ids, request.max_tokens)
        if total > self.info.max_context or pages_for(total) > (
            self.info.kv_capacity_tokens // PAGE_TOKENS
        ):
            raise RequestError(
                f"the prompt of {prompt} tokens and an output limit of {request.max_tokens} "
                f"need {total} tokens, the context holds {self.info.max_context}; shorten the "
                "prompt or lower the output limit",
                code="context_length_exceeded",
                param="messages",
            )
