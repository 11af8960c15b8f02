"""The policy of the engine: who is admitted, what is prefilled, what decodes, how long.

Pure Python on small facts about sequences; it touches no array, page or slot itself.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from ninfer_jax.engine.sequence import Phase


class Schedulable(Protocol):
    """What the policy knows of a sequence."""

    phase: Phase
    page_demand: int
    """Pages for the prompt and the whole output limit."""

    @property
    def request_id(self) -> int: ...


S = TypeVar("S", bound=Schedulable)


@dataclasses.dataclass(frozen=True)
class Plan(Generic[S]):
    """The work of one cycle of the worker.

    Attributes:
      admit: waiting sequences to bind now, in this order; they fit together.
      prefill: the sequence whose next prompt chunk runs, or None; may be one of `admit`.
      decode: the sequences that decode.
      rounds: most rounds of the decode dispatch, >= 1.
    """

    admit: tuple[S, ...]
    prefill: S | None
    decode: tuple[S, ...]
    rounds: int

    @property
    def empty(self) -> bool:
        return not self.admit and self.prefill is None and not self.decode


class Scheduler:
    """First come first served admission, round-robin prefill, all ready rows decode.

    Admission: a request needs a lane and all the pages it may ever use. One that does not fit
    may be overtaken by at most `overtake_limit` younger requests that do, counted over its
    whole wait; then it blocks everyone behind it. Since running sequences give back
    everything they hold, and any request fits an empty pool, every request is admitted.

    Prefill: one chunk per cycle, of the sequence that has waited longest for its turn, so a
    long prompt delays running rows by one chunk at a time.

    Rounds: a dispatch cannot be interrupted, so it is long only when nobody waits for it to
    end: neither for a lane nor for a turn of prefill.
    """

    def __init__(self, *, overtake_limit: int, rounds_per_dispatch: int):
        if overtake_limit < 0 or rounds_per_dispatch < 1:
            raise ValueError(
                f"overtake_limit >= 0 and rounds_per_dispatch >= 1 are needed, got "
                f"{overtake_limit} and {rounds_per_dispatch}"
            )
        self._overtake_limit = overtake_limit
        self._rounds_per_dispatch = rounds_per_dispatch
        self._overtaken: dict[int, int] = {}
        self._turns: collections.deque[int] = collections.deque()

    def plan(
        self, waiting: Sequence[S], running: Sequence[S], *, free_pages: int, free_slots: int
    ) -> Plan[S]:
        """Returns the work of one cycle; the caller must carry all of it out.

        Args:
          waiting: sequences not admitted, oldest first.
          running: admitted sequences that have not ended.
          free_pages: pages nobody holds.
          free_slots: state slots nobody holds, one per free lane.
        """
        admit = self._choose_admissions(waiting, free_pages, free_slots)
        prefilling = [s for s in running if s.phase is Phase.PREFILLING]
        prefilling.extend(admit)
        decode = tuple(s for s in running if s.phase is Phase.DECODING)
        undisturbed = not prefilling and len(admit) == len(waiting)
        return Plan(
            admit=tuple(admit),
            prefill=self._next_turn(prefilling),
            decode=decode,
            rounds=self._rounds_per_dispatch if undisturbed else 1,
        )

    def _choose_admissions(self, waiting: Iterable[S], pages: int, lanes: int) -> list[S]:
        admitted: list[S] = []
        blocked: list[S] = []
        counts = self._overtaken
        for candidate in waiting:
            # The oldest blocked request has been overtaken at least as often as any other:
            # whoever overtook a younger one overtook it too.
            exhausted = bool(blocked) and (
                counts.get(blocked[0].request_id, 0) >= self._overtake_limit
            )
            if lanes == 0 or exhausted or candidate.page_demand > pages:
                blocked.append(candidate)
                continue
            admitted.append(candidate)
            lanes -= 1
            pages -= candidate.page_demand
            for older in blocked:
                counts[older.request_id] = counts.get(older.request_id, 0) + 1
        # Only who still waits is remembered: the table never outgrows the queue.
        self._overtaken = {s.request_id: counts.get(s.request_id, 0) for s in blocked}
        return admitted

    def _next_turn(self, prefilling: Sequence[S]) -> S | None:
        by_id = {sequence.request_id: sequence for sequence in prefilling}
        turns = [request_id for request_id in self._turns if request_id in by_id]
        turns.extend(request_id for request_id in by_id if request_id not in turns)
        if not turns:
            self._turns.clear()
            return None
        self._turns = collections.deque(turns[1:] + turns[:1])
        return by_id[turns[0]]
