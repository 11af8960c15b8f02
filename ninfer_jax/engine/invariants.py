"""The error of a law that the engine's own bookkeeping must never break."""

from __future__ import annotations


class InvariantError(RuntimeError):
    """A broken law of the engine; the message names the law and what was found.

    It is always a bug, never a user's fault, and it ends the engine: after it, no page, slot
    or position can be trusted.
    """

    def __init__(self, law: str, found: str):
        super().__init__(f"broken invariant: {law}; found {found}")
        self.law = law
        self.found = found
