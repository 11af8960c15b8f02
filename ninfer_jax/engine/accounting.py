"""The engine's own counters: what ran, in tokens, seconds and rounds."""

from __future__ import annotations

from ninfer_jax.engine.request import Speculation, SpeculationTotals


class Tally:
    """Running sums over all requests since start.

    Attributes:
      prefill_tokens: prompt tokens run through the model.
      prefill_seconds: wall time of prefill units.
      decode_tokens: tokens committed by decode rounds; first tokens belong to prefill.
      decode_seconds: wall time of decode dispatches.
      rounds: decode rounds run.
      speculation: drafting of the requests that have ended.
      row_rounds: the same, counted once per row; divided by `rounds` it is the mean batch.
    """

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.prefill_seconds = 0.0
        self.decode_tokens = 0
        self.decode_seconds = 0.0
        self.rounds = 0
        self.row_rounds = 0
        self.speculation = SpeculationTotals()

    def prefill(self, tokens: int, seconds: float) -> None:
        self.prefill_tokens += tokens
        self.prefill_seconds += seconds

    def decode(self, row_rounds: list[int], seconds: float) -> None:
        """A dispatch in which row i took part in `row_rounds[i]` rounds."""
        self.rounds += max(row_rounds)
        self.row_rounds += sum(row_rounds)
        self.decode_seconds += seconds

    def drafts(self, speculation: Speculation) -> None:
        """A request has ended that drafted so much."""
        self.speculation = self.speculation.with_request(speculation)
