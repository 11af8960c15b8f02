"""An engine without a model: it plays scripted tokens to the engine protocol, on a thread.

It keeps the contract of `ninfer_jax.engine.request`: events in order from its own thread, exactly
one last event, lanes, deadlines of waiting requests, cancellation between rounds. A test decides
how far it may run: `hold` stops it before the next unit, `step` lets some units pass, `resume`
lets it run; `wait_until` blocks the test, on a condition, until the engine is in some state.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ninfer_jax.engine.request import (
    Delta,
    EngineCounters,
    EngineInfo,
    Failed,
    Finished,
    FinishReason,
    Progress,
    Request,
    Sink,
    Speculation,
    Timing,
    TokenVerdict,
    Usage,
)
from ninfer_jax.errors import QueueTimeoutError, UnavailableError
from ninfer_jax.text.tokenizer import Tokenizer

Script = Callable[[Request], Sequence[int]]
LONGEST_WAIT_SECONDS = 20.0


def fake_info(**changes: object) -> EngineInfo:
    """Facts of a small engine."""
    info = EngineInfo(
        model_name="fake",
        architecture="fake",
        max_context=4096,
        max_concurrency=1,
        kv_dtype="bf16",
        kv_capacity_tokens=4096,
        device="none",
    )
    return dataclasses.replace(info, **changes)


def speak(tokenizer: Tokenizer, text: str) -> Script:
    """A script that says `text`, markers such as `</think>` as their tokens, and stops."""
    ids = [*tokenizer.encode(text, allow_special=True), tokenizer.known.end_of_turn]
    return lambda request: ids


@dataclasses.dataclass(eq=False)
class _Running:
    request: Request
    sink: Sink
    submitted: float
    admitted: float = 0.0
    first: float | None = None
    tokens: Iterator[int] = dataclasses.field(default_factory=lambda: iter(()))
    prefilled: bool = False
    committed: int = 0
    rounds: int = 0


class FakeEngine:
    """Implements `ninfer_jax.engine.request.Engine`.

    Attributes:
      info: what the engine tells of itself.
      requests: every request that was submitted, in order.
    """

    def __init__(
        self,
        script: Script,
        *,
        info: EngineInfo | None = None,
        tokens_per_round: int = 1,
        prefill_chunk: int = 64,
        speculation: Speculation | None = None,
    ):
        self.info = info or fake_info()
        self.requests: list[Request] = []
        self._script = script
        self._tokens_per_round = tokens_per_round
        self._prefill_chunk = prefill_chunk
        self._speculation = speculation or Speculation()
        self._condition = threading.Condition()
        self._waiting: collections.deque[_Running] = collections.deque()
        self._running: list[_Running] = []
        self._cancelled: set[int] = set()
        self._permits: int | None = None
        self._failure: str | None = None
        self._drain_deadline: float | None = None
        self._decoded = 0
        self._prefilled = 0
        self._rounds = 0
        self._row_rounds = 0
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    # The protocol.

    @property
    def healthy(self) -> bool:
        return self._failure is None and self._drain_deadline is None

    def submit(self, request: Request, sink: Sink) -> None:
        with self._condition:
            if not self.healthy:
                raise UnavailableError(self._failure or "the server is shutting down")
            self.requests.append(request)
            self._waiting.append(_Running(request, sink, time.monotonic()))
            self._condition.notify_all()

    def cancel(self, request_id: int) -> None:
        with self._condition:
            everyone = [*self._waiting, *self._running]
            if any(entry.request.request_id == request_id for entry in everyone):
                self._cancelled.add(request_id)
                self._condition.notify_all()

    def counters(self) -> EngineCounters:
        with self._condition:
            return self._counters()

    def close(self, *, drain_seconds: float = 0.0) -> None:
        with self._condition:
            if self._drain_deadline is None:
                self._drain_deadline = time.monotonic() + drain_seconds
            self._condition.notify_all()
        self._thread.join()

    # What a test does.

    def hold(self) -> None:
        """Stops before the next unit."""
        self.step(0)

    def step(self, units: int) -> None:
        """Lets exactly `units` further units pass: a prefill, or one round of all rows."""
        with self._condition:
            self._permits = units
            self._condition.notify_all()

    def resume(self) -> None:
        with self._condition:
            self._permits = None
            self._condition.notify_all()

    def fail(self) -> None:
        """Fails as a whole, as after a device fault."""
        with self._condition:
            self._failure = "the engine has failed"
            self._condition.notify_all()

    def wait_until(self, holds: Callable[[EngineCounters], bool]) -> None:
        """Blocks until `holds` is true of the counters. Raises `AssertionError` if it never is."""
        with self._condition:
            if not self._condition.wait_for(lambda: holds(self._counters()), LONGEST_WAIT_SECONDS):
                raise AssertionError(f"the engine never got there: {self._counters()}")

    # The thread.

    def _run(self) -> None:
        with self._condition:
            while True:
                self._clean_up()
                if self._drain_deadline is not None and not (self._running or self._waiting):
                    return
                while self._waiting and len(self._running) < self.info.max_concurrency:
                    self._admit(self._waiting.popleft())
                self._condition.notify_all()
                if self._running and self._permits != 0:
                    if self._permits is not None:
                        self._permits -= 1
                    self._unit()
                else:
                    self._condition.wait(self._seconds_to_next_deadline())

    def _seconds_to_next_deadline(self) -> float | None:
        deadlines = [e.request.deadline for e in self._waiting if e.request.deadline is not None]
        if self._drain_deadline is not None:
            deadlines.append(self._drain_deadline)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _clean_up(self) -> None:
        now = time.monotonic()
        for entry in [*self._running, *self._waiting]:
            waiting = entry in self._waiting
            deadline = entry.request.deadline
            if self._failure is not None:
                self._end(entry, Failed(UnavailableError(self._failure)))
            elif self._drain_deadline is not None and (waiting or now >= self._drain_deadline):
                self._end(entry, Failed(UnavailableError("the server is shutting down")))
            elif entry.request.request_id in self._cancelled:
                self._finish(entry, FinishReason.CANCELLED)
            elif waiting and deadline is not None and now >= deadline:
                self._end(entry, Failed(QueueTimeoutError("not started before its deadline")))
        self._cancelled.clear()

    def _admit(self, entry: _Running) -> None:
        entry.admitted = time.monotonic()
        entry.tokens = iter(self._script(entry.request))
        self._running.append(entry)

    def _unit(self) -> None:
        fresh = next((entry for entry in self._running if not entry.prefilled), None)
        if fresh is not None:
            self._prefill(fresh)
            return
        self._rounds += 1
        for entry in list(self._running):
            self._row_rounds += 1
            entry.rounds += 1
            self._commit(entry, self._tokens_per_round)

    def _prefill(self, entry: _Running) -> None:
        entry.prefilled = True
        total = len(entry.request.prompt_ids)
        self._prefilled += total
        for end in [*range(self._prefill_chunk, total, self._prefill_chunk), total]:
            entry.sink(Progress(end, total=total, cached=0))
        if entry.request.max_tokens == 0:
            self._finish(entry, self._limit_reason(entry))
        else:
            self._commit(entry, 1)

    def _commit(self, entry: _Running, count: int) -> None:
        ids: list[int] = []
        reason: FinishReason | None = None
        while len(ids) < count and reason is None:
            token = next(entry.tokens, min(entry.request.stop_token_ids))
            ids.append(token)
            entry.committed += 1
            if token in entry.request.stop_token_ids:
                reason = FinishReason.STOP_TOKEN
            elif entry.request.decoder.push(token) is TokenVerdict.STOP_STRING:
                reason = FinishReason.STOP_STRING
            elif entry.committed == entry.request.max_tokens:
                reason = self._limit_reason(entry)
        if entry.first is None:
            entry.first = time.monotonic()
        else:
            self._decoded += len(ids)
        entry.sink(Delta(*entry.request.decoder.take(), tuple(ids)))
        if reason is not None:
            self._finish(entry, reason)

    def _limit_reason(self, entry: _Running) -> FinishReason:
        limited = entry.request.context_limited
        return FinishReason.CONTEXT_CAPACITY if limited else FinishReason.OUTPUT_LIMIT

    def _finish(self, entry: _Running, reason: FinishReason) -> None:
        reasoning, content = entry.request.decoder.finish()
        if reasoning or content:
            entry.sink(Delta(reasoning, content, ()))
        now = time.monotonic()
        started = entry.admitted or now
        first = entry.first
        timing = Timing(
            queue_wait=started - entry.submitted,
            prefill=0.0 if first is None else first - started,
            decode=0.0 if first is None else now - first,
            first_token=None if first is None else first - entry.submitted,
            total=now - entry.submitted,
            wall_prompt=0.0 if first is None else first - started,
            wall_predicted=0.0 if first is None else now - first,
            rounds=entry.rounds,
        )
        usage = Usage(
            prompt_tokens=len(entry.request.prompt_ids),
            completion_tokens=entry.committed,
            reasoning_tokens=entry.request.decoder.reasoning_tokens,
        )
        self._end(entry, Finished(reason, usage, timing, self._speculation))

    def _end(self, entry: _Running, event: Finished | Failed) -> None:
        if entry in self._waiting:
            self._waiting.remove(entry)
        else:
            self._running.remove(entry)
        entry.sink(event)

    def _counters(self) -> EngineCounters:
        running = len(self._running)
        return EngineCounters(
            running=running,
            waiting=len(self._waiting),
            prefill_tokens=self._prefilled,
            decode_tokens=self._decoded,
            decode_seconds=0.0,
            prefill_seconds=0.0,
            rounds=self._rounds,
            row_rounds=self._row_rounds,
            recompilations=0,
            pages_used=running,
            pages_total=self.info.kv_capacity_tokens // 64,
            slots_used=running,
            slots_total=self.info.max_concurrency,
        )
