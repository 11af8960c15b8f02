"""Accounting of the state slots: one recurrent and convolution state per running sequence."""

from __future__ import annotations

from ninfer_jax.engine.invariants import InvariantError


class StateSlots:
    """Hands out slot numbers `0 .. total - 1`, each to one owner, and takes them back.

    Unlike a page, a slot is never shared: the state is changed by every token, so a second
    reader needs a copy.
    """

    def __init__(self, count: int):
        if count < 1:
            raise ValueError(f"there is at least one state slot, got {count}")
        self._held = [False] * count
        self._free = list(range(count - 1, -1, -1))

    @property
    def total(self) -> int:
        return len(self._held)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - self.free

    def can_allocate(self) -> bool:
        return bool(self._free)

    def allocate(self) -> int:
        """Takes a free slot; may not fail after `can_allocate()`."""
        if not self._free:
            raise InvariantError(
                "a slot is allocated only after can_allocate", f"all {self.total} slots held"
            )
        slot = self._free.pop()
        self._held[slot] = True
        return slot

    def release(self, slot: int) -> None:
        """Gives the slot back; it must be held."""
        if not 0 <= slot < self.total:
            raise InvariantError("slot numbers lie in the table", f"slot {slot} of {self.total}")
        if not self._held[slot]:
            raise InvariantError("only a held slot is released", f"slot {slot} is free")
        self._held[slot] = False
        self._free.append(slot)

    def check(self) -> None:
        """Raises `InvariantError` unless every slot is either free or held, and not both."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a slot is free at most once", f"free list {self._free}")
        for slot, held in enumerate(self._held):
            if held == (slot in free):
                raise InvariantError(
                    "a slot is free exactly when nobody holds it",
                    f"slot {slot}: held {held}, free {slot in free}",
                )
