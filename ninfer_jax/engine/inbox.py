"""Where other threads leave their wishes for the worker: requests, cancellations, the close.

The only place of the engine with a lock. The worker waits here, on a condition, when it has
nothing to do.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import TypeVar

from ninfer_jax.engine.sequence import Sequence
from ninfer_jax.errors import UnavailableError

R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class Intake:
    """What the worker takes over in one go.

    Attributes:
      arrivals: new sequences, in order of submission.
      cancellations: ids of open requests that are to end soon.
      drain_deadline: None while open; else the time at which running sequences are failed.
    """

    arrivals: tuple[Sequence, ...]
    cancellations: frozenset[int]
    drain_deadline: float | None


class Inbox:
    """Hands requests, cancellations and the close from any thread to the worker.

    A request is open from `submit` until the worker says `settle`. Wishes about requests that
    are not open leave no trace.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._arrivals: list[Sequence] = []
        self._cancellations: set[int] = set()
        self._open: set[int] = set()
        self._refusal: str | None = None
        self._drain_deadline: float | None = None

    @property
    def accepting(self) -> bool:
        """False once the engine closes or has failed."""
        return self._refusal is None

    def submit(self, sequence: Sequence) -> None:
        """Queues a sequence; raises `UnavailableError` once the engine closes or has failed."""
        with self._condition:
            if self._refusal is not None:
                raise UnavailableError(self._refusal)
            if sequence.request_id in self._open:
                raise ValueError(f"request id {sequence.request_id} is already in use")
            self._open.add(sequence.request_id)
            self._arrivals.append(sequence)
            self._condition.notify_all()

    def cancel(self, request_id: int) -> None:
        with self._condition:
            if request_id in self._open:
                self._cancellations.add(request_id)
                self._condition.notify_all()

    def close(self, reason: str, drain_deadline: float) -> None:
        """Refuses further requests; of several deadlines the earliest counts."""
        with self._condition:
            if self._refusal is None:
                self._refusal = reason
            if self._drain_deadline is None or drain_deadline < self._drain_deadline:
                self._drain_deadline = drain_deadline
            self._condition.notify_all()

    def seal(self, reason: str) -> tuple[Sequence, ...]:
        """Ends the inbox for good: returns what has not been taken, and takes no more."""
        with self._condition:
            self._refusal = reason
            arrivals, self._arrivals = tuple(self._arrivals), []
            self._cancellations.clear()
            return arrivals

    def settle(self, request_id: int) -> None:
        """The request has ended: its id is free again."""
        with self._condition:
            self._open.discard(request_id)
            self._cancellations.discard(request_id)

    def poll(self, deliver: Callable[[Intake], None]) -> None:
        """Gives the worker what has come, if anything, without waiting."""
        with self._condition:
            self._hand_over(deliver)

    def wait(self, deliver: Callable[[Intake], None]) -> None:
        """Sleeps until something has come or the inbox closes, then gives it to the worker."""
        with self._condition:
            while not (self._arrivals or self._cancellations or self._drain_deadline is not None):
                self._condition.wait()
            self._hand_over(deliver)

    def observe(self, look: Callable[[int], R]) -> R:
        """Calls `look` with the number of untaken arrivals while no hand-over can happen."""
        with self._condition:
            return look(len(self._arrivals))

    def _hand_over(self, deliver: Callable[[Intake], None]) -> None:
        intake = Intake(tuple(self._arrivals), frozenset(self._cancellations), self._drain_deadline)
        self._arrivals.clear()
        self._cancellations.clear()
        # Still under the lock: an observer sees each request either here or at the worker.
        deliver(intake)
