"""The one thread that owns the device, and its cycle.

      take in arrivals, cancellations, the close
      fail what is closed or past its deadline, end what is cancelled
      plan -> admit -> dispatch one prefill chunk -> dispatch one decode
      deliver the events of the cycle before, while the device works
      per unit, when its result is there: accounting, preview -> commit -> publish

An event is put into the outbox when it has come true, and delivered after the next dispatch,
or at once if there is nothing to dispatch.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import logging
from collections.abc import Callable

from ninfer_jax.engine.accounting import Tally
from ninfer_jax.engine.inbox import Inbox, Intake
from ninfer_jax.engine.invariants import InvariantError
from ninfer_jax.engine.outbox import Outbox
from ninfer_jax.engine.request import (
    Delta,
    EngineCounters,
    Failed,
    Finished,
    FinishReason,
    Progress,
)
from ninfer_jax.engine.roster import Roster
from ninfer_jax.engine.scheduler import Plan, Scheduler
from ninfer_jax.engine.sequence import Sequence
from ninfer_jax.engine.timeline import Pace, UnitClock
from ninfer_jax.engine.units import PendingDecode, PendingPrefill, PrefillUnit, Programs
from ninfer_jax.errors import NInferError, NumericalError, QueueTimeoutError, UnavailableError

_NOTHING = Delta("", "", ())
_log = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; send the request again later"


@dataclasses.dataclass(frozen=True)
class _Prefill:
    """A prefill chunk under way."""

    sequence: Sequence
    unit: PrefillUnit
    pending: PendingPrefill
    dispatched: float


@dataclasses.dataclass(frozen=True)
class _Decode:
    """A decode dispatch under way, with its rows."""

    sequences: tuple[Sequence, ...]
    pending: PendingDecode
    dispatched: float


class Worker:
    """Runs sequences on the device, from arrival to their one last event.

    Everything but `snapshot` belongs to the worker thread. `run` is its whole life; a test
    may call `poll` and `cycle` itself instead.
    """

    def __init__(
        self,
        programs: Programs,
        inbox: Inbox,
        roster: Roster,
        scheduler: Scheduler,
        clock: Callable[[], float],
    ):
        self._programs = programs
        self._inbox = inbox
        self._roster = roster
        self._scheduler = scheduler
        self._clock = clock
        self._outbox = Outbox()
        self._tally = Tally()
        self._unit_clock = UnitClock()
        self._pace = Pace()
        self._cancelled: set[int] = set()
        self._drain_deadline: float | None = None
        self.snapshot = self._counters()

    def run(self) -> None:
        """Works until closed and drained, or until the engine fails."""
        try:
            while self._drain_deadline is None or not self._roster.empty:
                if self._roster.empty:
                    self._inbox.wait(self._take_in)
                else:
                    self.poll()
                self.cycle()
        except BaseException as error:  # the thread ends here: nobody may be left waiting
            self.fail(error)

    def poll(self) -> None:
        """Takes in what has come since the last time."""
        self._inbox.poll(self._take_in)

    def cycle(self) -> None:
        """One turn of the work described above; does nothing if there is nothing to do."""
        roster = self._roster
        now = self._clock()
        self._close_down(now)
        self._expire(now)
        self._cancel()
        plan = self._scheduler.plan(
            roster.waiting,
            roster.running,
            free_pages=roster.pages.free,
            free_slots=roster.slots.free,
        )
        if plan.empty and roster.waiting:
            head = roster.waiting[0]
            raise InvariantError(
                "the head of the queue starts once the lanes are empty",
                f"request {head.request_id} needs {head.page_demand} pages, "
                f"{roster.pages.free} of {roster.pages.total} free",
            )
        for sequence in plan.admit:
            roster.admit(sequence, now)
        prefill = None if plan.prefill is None else self._dispatch_prefill(plan.prefill)
        decode = None if not plan.decode else self._dispatch_decode(plan.decode, self._rounds(plan))
        self._deliver()
        if prefill is not None:
            self._complete_prefill(prefill)
        if decode is not None:
            self._complete_decode(decode)
        self.snapshot = self._counters()
        if roster.empty:
            roster.check()
            self._deliver()

    def fail(self, error: BaseException) -> None:
        """Marks the engine as failed: every open request gets its `Failed`, no more is taken.

        The device is not touched again; pages and slots are returned on the host.
        """
        _log.error("the engine has failed", exc_info=error)
        reason = (
            f"the engine has failed ({type(error).__name__}) and serves no more requests; "
            "see the log of the server and restart it"
        )
        self._roster.enter(self._inbox.seal(reason))
        for sequence in self._roster.everyone():
            try:
                self._detach(sequence, Failed(UnavailableError(reason)))
            except Exception:
                # Its event is out already; what is broken is the account it returns to.
                _log.exception("request %d left a broken account", sequence.request_id)
        self.snapshot = self._counters()
        self._deliver()

    # Arrivals and early ends.

    def _take_in(self, intake: Intake) -> None:
        self._roster.enter(intake.arrivals)
        self._cancelled.update(intake.cancellations)
        self._drain_deadline = intake.drain_deadline
        if intake.arrivals:
            self.snapshot = self._counters()

    def _close_down(self, now: float) -> None:
        if self._drain_deadline is None:
            return
        drained = now >= self._drain_deadline
        for sequence in self._roster.everyone() if drained else list(self._roster.waiting):
            self._end(sequence, Failed(UnavailableError(SHUTTING_DOWN)))

    def _expire(self, now: float) -> None:
        for sequence in list(self._roster.waiting):
            deadline = sequence.request.deadline
            if deadline is not None and now >= deadline:
                message = (
                    "the request was not started before its pending deadline "
                    f"({len(self._roster.running)} requests are running); send it again later"
                )
                self._end(sequence, Failed(QueueTimeoutError(message)))

    def _cancel(self) -> None:
        if not self._cancelled:
            return
        for sequence in self._roster.everyone():
            if sequence.request_id in self._cancelled:
                self._finish(sequence, FinishReason.CANCELLED)
        self._cancelled.clear()

    # Units.

    def _dispatch_prefill(self, sequence: Sequence) -> _Prefill:
        unit = sequence.prefill_unit(self._programs.prefill_chunk)
        dispatched = self._clock()
        sequence.timeline.start_prefill(dispatched)
        return _Prefill(sequence, unit, self._programs.prefill(unit), dispatched)

    def _rounds(self, plan: Plan[Sequence]) -> int:
        """Rounds of a dispatch: one where the host must look at the text in between."""
        if any(sequence.request.host_paced for sequence in plan.decode):
            return 1
        return self._pace.rounds(plan.rounds)

    def _dispatch_decode(self, sequences: tuple[Sequence, ...], rounds: int) -> _Decode:
        rows = [sequence.decode_row() for sequence in sequences]
        dispatched = self._clock()
        return _Decode(sequences, self._programs.decode(rows, rounds), dispatched)

    def _complete_prefill(self, prefill: _Prefill) -> None:
        sequence, unit = prefill.sequence, prefill.unit
        first = prefill.pending.result()
        completed = self._clock()
        seconds = self._unit_clock.complete(prefill.dispatched, completed)
        sequence.timeline.end_prefill(completed)
        self._tally.prefill(len(unit.tokens), seconds)
        if (first is not None) != unit.sample:
            raise InvariantError(
                "a prefill unit returns a token exactly when it samples",
                f"sample {unit.sample}, token {first}",
            )
        prompt_complete = sequence.complete_prefill(unit, self._programs.drafting.lag)
        progress = Progress(sequence.frontier, total=sequence.prompt_length, cached=0)
        self._outbox.put(sequence, progress)
        if first is not None:
            self._commit(sequence, [first])
        elif prompt_complete:
            self._finish(sequence, sequence.limit_reason)

    def _complete_decode(self, decode: _Decode) -> None:
        rounds = decode.pending.result()
        seconds = self._unit_clock.complete(decode.dispatched, self._clock())
        if len(rounds) != len(decode.sequences):
            raise InvariantError(
                "a decode dispatch returns one list of rounds per row",
                f"{len(rounds)} lists, {len(decode.sequences)} rows",
            )
        self._tally.decode([len(of_row) for of_row in rounds], seconds)
        self._pace.observe(max(map(len, rounds)), seconds)
        for sequence, of_row in zip(decode.sequences, rounds, strict=True):
            sequence.timeline.decode(seconds, len(of_row))
            sequence.decoded(of_row, self._programs.drafting)
            tokens = [token for one in of_row for token in one.tokens]
            self._tally.decode_tokens += self._commit(sequence, tokens)

    def _commit(self, sequence: Sequence, produced: collections.abc.Sequence[int]) -> int:
        """Keeps and publishes what a unit produced for a sequence; returns how many tokens."""
        try:
            commit = sequence.preview(produced)
            text = sequence.visible_text()
        except InvariantError:
            raise
        except Exception:
            _log.exception("request %d: its output could not be decoded", sequence.request_id)
            self._end(sequence, Failed(NInferError("the output could not be turned into text")))
            return 0
        sequence.commit(commit, self._clock())
        delta = Delta(*text, commit.token_ids, sequence.drafted(commit))
        if commit.finish is not None:
            self._finish(sequence, commit.finish, delta)
        elif commit.token_ids:
            self._outbox.put(sequence, delta)
        if commit.non_finite:
            message = (
                f"the model produced a logit that is not finite at position {sequence.known} "
                "of the sequence; this request was ended, others are not affected"
            )
            self._end(sequence, Failed(NumericalError(message)))
        return len(commit.token_ids)

    # Ends.

    def _finish(self, sequence: Sequence, reason: FinishReason, last: Delta = _NOTHING) -> None:
        """Ends a sequence in order: a last delta with all text held back, then `Finished`."""
        try:
            reasoning, content = sequence.closing_text()
            last = dataclasses.replace(
                last, reasoning=last.reasoning + reasoning, content=last.content + content
            )
        except Exception:
            # What was committed stays committed; only text held back is lost.
            _log.exception("request %d: its output could not be ended", sequence.request_id)
        if last.reasoning or last.content or last.token_ids:
            self._outbox.put(sequence, last)
        timing = sequence.timeline.timing(self._clock())
        drafts = sequence.drafts.total()
        self._tally.drafts(drafts)
        self._end(sequence, Finished(reason, sequence.usage(), timing, drafts))

    def _end(self, sequence: Sequence, event: Finished | Failed) -> None:
        slot = self._detach(sequence, event)
        if slot is not None:
            self._programs.release(slot)

    def _detach(self, sequence: Sequence, event: Finished | Failed) -> int | None:
        """Takes a sequence out of the engine on the host; returns the slot that it held.

        The event comes before anything that can fail, so no request ends without one.
        """
        self._outbox.put(sequence, event)
        self._inbox.settle(sequence.request_id)
        return self._roster.leave(sequence)

    def _deliver(self) -> None:
        # Nobody listens behind a sink that raises: such a request is ended.
        self._cancelled |= self._outbox.deliver()

    def _counters(self) -> EngineCounters:
        roster, tally = self._roster, self._tally
        return EngineCounters(
            running=len(roster.running),
            waiting=len(roster.waiting),
            prefill_tokens=tally.prefill_tokens,
            decode_tokens=tally.decode_tokens,
            decode_seconds=tally.decode_seconds,
            prefill_seconds=tally.prefill_seconds,
            rounds=tally.rounds,
            row_rounds=tally.row_rounds,
            speculation=tally.speculation,
            recompilations=self._programs.recompilations,
            pages_used=roster.pages.used,
            pages_total=roster.pages.total,
            slots_used=roster.slots.used,
            slots_total=roster.slots.total,
        )
