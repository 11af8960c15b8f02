"""Device programs without a device: tokens are a function of slot history and position.

Checks what the engine hands it: pages and slots in range and disjoint between sequences of a
dispatch, positions contiguous per slot, limits kept, pending columns those of the last round.
Used by tests only.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

from ninfer_jax.engine.units import DecodeRow, Drafting, Pending, PrefillUnit, Round

Script = Callable[[int, int], int]
"""(prompt length, index of an output token) -> token id, or how many drafts behind it hold."""

NO_DRAFTING = Drafting()


@dataclasses.dataclass
class Ready:
    """A result that is there at once, or once `gate` is set."""

    value: object
    gate: threading.Event | None = None
    error: Exception | None = None

    def result(self):
        """See `PendingPrefill.result` and `PendingDecode.result`."""
        if self.gate is not None and not self.gate.wait(30):
            raise TimeoutError("the test never opened the gate")
        if self.error is not None:
            raise self.error
        return self.value


class FakePrograms:
    """Implements `ninfer_jax.engine.units.Programs`.

    Attributes:
      gate: results wait for it when set to an event.
      fail_next: exception that the next result raises.
      history: per slot, (prompt length or None while prefilling, next cache position).
      pending: per slot, what the last unit left for the next one.
    """

    recompilations = 0

    def __init__(
        self,
        script: Script,
        *,
        pages: int,
        slots: int,
        lane_buckets: tuple[int, ...] = (1, 2, 4, 8),
        prefill_chunk: int = 128,
        drafting: Drafting = NO_DRAFTING,
        accepts: Script = lambda prompt, index: 0,
    ):
        self.lane_buckets = lane_buckets
        self.prefill_chunk = prefill_chunk
        self.gate: threading.Event | None = None
        self.fail_next: Exception | None = None
        self.history: dict[int, tuple[int | None, int]] = {}
        self.pending: dict[int, Pending] = {}
        self.drafting = drafting
        self.dispatches: list[tuple[int, int]] = []
        self._script = script
        self._accepts = accepts
        self._pages = pages
        self._slots = slots

    def _check_place(self, slot: int, pages: Sequence[int], last: int) -> None:
        assert 0 <= slot < self._slots, f"slot {slot} of {self._slots}"
        assert all(0 <= page < self._pages for page in pages), f"pages {pages} of {self._pages}"
        assert len(set(pages)) == len(pages), f"a page twice in {pages}"
        assert last < 64 * len(pages), f"position {last} beyond {len(pages)} pages"

    def _check_pending(self, slot: int, told: Pending) -> None:
        left = self.pending.get(slot, Pending())
        assert told == left, f"slot {slot}: {told}, the last unit left {left}"

    def _round(self, row: DecodeRow, left: int) -> Round:
        """The next round of a row that may still produce `left` tokens."""
        prompt, position = self.history[row.slot]
        assert prompt is not None
        index, drafts = position - prompt + 1, self.drafting.draft_tokens
        drafted = drafts if left > drafts else 0
        accepted = min(drafted, self._accepts(prompt, index))
        self._check_place(row.slot, row.pages, position + accepted)
        self.history[row.slot] = (prompt, position + accepted + 1)
        tokens = tuple(self._script(prompt, index + i) for i in range(accepted + 1))
        if any(token < 0 for token in tokens):
            return Round((min(tokens),))
        if drafts:
            self.pending[row.slot] = Pending(accepted + 1, accepted + 1)
        return Round(tokens, drafted, accepted)

    def _ready(self, value: object) -> Ready:
        error, self.fail_next = self.fail_next, None
        return Ready(value, self.gate, error)

    def prefill(self, unit: PrefillUnit) -> Ready:
        """See `Programs.prefill`."""
        count = len(unit.tokens)
        assert 1 <= count <= self.prefill_chunk
        self._check_place(unit.slot, unit.pages, unit.start + count - 1)
        assert unit.fresh == (unit.start == 0)
        if not unit.fresh:
            assert self.history[unit.slot] == (None, unit.start), "chunks are contiguous"
        self._check_pending(unit.slot, unit.pending)
        self.pending[unit.slot] = Pending(absorb=self.drafting.lag)
        end = unit.start + count
        self.history[unit.slot] = (end if unit.sample else None, end)
        return self._ready(self._script(end, 0) if unit.sample else None)

    def decode(self, rows: Sequence[DecodeRow], rounds: int) -> Ready:
        """See `Programs.decode`."""
        assert 1 <= len(rows) <= self.lane_buckets[-1] and rounds >= 1
        held = [page for row in rows for page in row.pages]
        assert len(set(held)) == len(held), "rows share a page"
        assert len({row.slot for row in rows}) == len(rows), "rows share a slot"
        for row in rows:
            assert row.position == self.history[row.slot][1], "positions are contiguous"
            self._check_pending(row.slot, row.pending)
        produced: list[list[Round]] = [[] for _ in rows]
        left = [row.limit for row in rows]
        ended = False
        while not ended and len(produced[0]) < rounds:
            for index, row in enumerate(rows):
                one = self._round(row, left[index])
                produced[index].append(one)
                left[index] -= len(one.tokens)
                ended |= any(token in row.stop_token_ids or token < 0 for token in one.tokens)
                ended |= left[index] == 0
        self.dispatches.append((len(rows), len(produced[0])))
        return self._ready(produced)

    def release(self, slot: int) -> None:
        """See `Programs.release`."""
        self.history.pop(slot, None)
        self.pending.pop(slot, None)
