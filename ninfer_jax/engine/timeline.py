"""The time windows of one request and of the device, as arithmetic on clock readings.

Readings are monotonic seconds. `s` submitted, `b` bound to a lane, `f` first and `e` last
output token committed, `z` outcome. A unit's interval runs from its dispatch to its result on
the host; when it was dispatched behind another unit that was still running, from the
completion of that one, so that no device time is counted twice.

      dispatch prefill 0.0, dispatch decode 0.1, prefill done 2.0, decode done 2.5
      prefill = 2.0 - 0.0 = 2.0,  decode = 2.5 - 2.0 = 0.5,  sum = 2.5 = elapsed
"""

from __future__ import annotations

from ninfer_jax.engine.request import Timing


class UnitClock:
    """Turns dispatch and completion readings of units in order into their wall times."""

    def __init__(self) -> None:
        self._last_completion = float("-inf")

    def complete(self, dispatched: float, completed: float) -> float:
        """Returns the seconds of a unit; call in the order in which units complete."""
        seconds = completed - max(dispatched, self._last_completion)
        self._last_completion = completed
        return seconds


class Pace:
    """How many decode rounds a dispatch may have, so that it does not last too long.

    A dispatch cannot be interrupted: text is shown, and a new request is noticed, only when
    it ends. On a fast device many rounds fit and the host's share of the time is small; on a
    slow one, or a large model, few do.
    """

    def __init__(self, longest_seconds: float = 0.1):
        self._longest = longest_seconds
        self._round_seconds = 0.0

    def rounds(self, most: int) -> int:
        """At most `most`, at least 1, as many as fit into the longest time.

        Rounds of 30 ms and 100 ms at most: 3.
        """
        if self._round_seconds <= 0:
            return most
        return max(1, min(most, int(self._longest / self._round_seconds)))

    def observe(self, rounds: int, seconds: float) -> None:
        """A dispatch of `rounds` rounds took `seconds`."""
        self._round_seconds = seconds / rounds


class Timeline:
    """Readings of one request, and the `Timing` they amount to.

    Each method is told the time: a timeline has no clock of its own.
    """

    def __init__(self, submitted: float):
        self._submitted = submitted
        self._bound: float | None = None
        self._prefill_started: float | None = None
        self._prefill_seconds = 0.0
        self._first: float | None = None
        self._last: float | None = None
        self._decode_seconds = 0.0
        self._rounds = 0

    def bind(self, now: float) -> None:
        """The request was admitted and bound to a lane."""
        self._bound = now

    def start_prefill(self, dispatched: float) -> None:
        """A prefill unit was dispatched; only the first one opens the window."""
        if self._prefill_started is None:
            self._prefill_started = dispatched

    def end_prefill(self, completed: float) -> None:
        """A prefill unit is complete. The window is wall time, so it includes what ran
        between the chunks of this request."""
        if self._prefill_started is not None:
            self._prefill_seconds = completed - self._prefill_started

    def decode(self, seconds: float, rounds: int) -> None:
        """The request took part in `rounds` rounds that took `seconds` in all: every row is
        charged the full rounds."""
        self._decode_seconds += seconds
        self._rounds += rounds

    def commit(self, now: float) -> None:
        """At least one output token was committed."""
        if self._first is None:
            self._first = now
        self._last = now

    def timing(self, now: float) -> Timing:
        """The windows of a request whose outcome is reached now."""
        bound, first, last = self._bound, self._first, self._last
        return Timing(
            queue_wait=0.0 if bound is None else bound - self._submitted,
            prefill=self._prefill_seconds,
            decode=self._decode_seconds,
            first_token=None if first is None else first - self._submitted,
            total=now - self._submitted,
            wall_prompt=0.0 if bound is None or first is None else first - bound,
            wall_predicted=0.0 if first is None or last is None else last - first,
            rounds=self._rounds,
        )
