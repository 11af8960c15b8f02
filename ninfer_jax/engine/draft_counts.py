"""What drafting did for one request, counted before anything is cut off at its end."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_jax.engine.request import Speculation
from ninfer_jax.engine.units import Drafting, Round


class DraftCounts:
    """Rounds with a proposal count, with all K of its tokens; rounds without one are fallbacks.

    K = 8, three rounds that accept 8, 2 and 0: drafted 24, accepted 10, and by position
    2 2 1 1 1 1 1 1. The token behind the accepted ones is not an accepted token.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._fallbacks = 0
        self._by_position: list[int] = []
        self._drafting = Drafting()

    def add(self, rounds: Sequence[Round], drafting: Drafting) -> None:
        """Counts rounds; without a drafter there is nothing to count."""
        self._drafting = drafting
        if not drafting.draft_tokens:
            return
        self._by_position = self._by_position or [0] * drafting.draft_tokens
        for one in rounds:
            if not one.drafted:
                self._fallbacks += 1
                continue
            self._rounds += 1
            for position in range(one.accepted):
                self._by_position[position] += 1

    def total(self) -> Speculation:
        """The counts so far."""
        window = self._drafting.draft_tokens
        return Speculation(
            backend=self._drafting.backend,
            draft_window=window,
            rounds=self._rounds,
            drafted_tokens=self._rounds * window,
            accepted_tokens=sum(self._by_position),
            fallback_steps=self._fallbacks,
            accepted_per_position=tuple(self._by_position),
        )
