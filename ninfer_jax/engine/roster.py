"""Who is in the engine, and what pages and slots they hold."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_jax.engine.invariants import InvariantError
from ninfer_jax.engine.pages import PageAllocator
from ninfer_jax.engine.sequence import Phase, Sequence
from ninfer_jax.engine.slots import StateSlots


class Roster:
    """The waiting and the running sequences, with the two accounts they draw from.

    `waiting` is in order of arrival, `running` in order of admission; both are for reading.
    """

    def __init__(self, *, total_pages: int, total_slots: int):
        self.pages = PageAllocator(total_pages)
        self.slots = StateSlots(total_slots)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.running

    def everyone(self) -> list[Sequence]:
        """A copy, safe to walk while sequences leave: running ones first."""
        return [*self.running, *self.waiting]

    def enter(self, sequences: Iterable[Sequence]) -> None:
        self.waiting.extend(sequences)

    def admit(self, sequence: Sequence, now: float) -> None:
        """Binds a waiting sequence to pages and a slot; both must be free."""
        pages = self.pages.allocate(sequence.page_demand)
        sequence.bind(pages, self.slots.allocate(), now)
        self.waiting.remove(sequence)
        self.running.append(sequence)

    def leave(self, sequence: Sequence) -> int | None:
        """Ends a sequence in whatever phase; returns the slot that it gave back, if any."""
        members = self.waiting if sequence.phase is Phase.WAITING else self.running
        pages, slot = sequence.finish()
        members.remove(sequence)
        self.pages.release(pages)
        if slot is not None:
            self.slots.release(slot)
        return slot

    def check(self) -> None:
        """Raises `InvariantError` unless accounts and ledgers agree (between cycles)."""
        self.pages.check()
        self.slots.check()
        held: set[int] = set()
        for sequence in self.everyone():
            sequence.check()
            shared = held.intersection(sequence.pages)
            if shared:
                raise InvariantError(
                    "no page belongs to two sequences",
                    f"request {sequence.request_id} and another hold {sorted(shared)}",
                )
            held.update(sequence.pages)
        if len(held) != self.pages.used:
            raise InvariantError(
                "every used page belongs to a running sequence",
                f"{self.pages.used} used, {len(held)} belong to somebody",
            )
        slots = {sequence.slot for sequence in self.running}
        if not len(slots) == len(self.running) == self.slots.used:
            raise InvariantError(
                "every used slot belongs to one running sequence",
                f"{self.slots.used} used, {len(self.running)} running, slots {slots}",
            )
