"""What the host asks of the device: units of work, and the programs that run them.

A unit is one indivisible device job: one prefill chunk, or one dispatch of up to `rounds`
decode rounds. `Programs` dispatches a unit and returns at once with a pending result, so
the host can work while the device does. Units run in the order in which they were
dispatched. No JAX here: the device side implements `Programs`, tests use
`ninfer_jax.testing.fake_programs.FakePrograms`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ninfer_jax.engine.request import SamplingParams

NON_FINITE = -1
"""Stands in a result for a token whose logits were not finite."""


@dataclasses.dataclass(frozen=True)
class Drafting:
    """How the programs draft.

    Attributes:
      backend: name of the drafter, "none" without one.
      draft_tokens: K, tokens of a proposal.
      lag: columns of a prefilled prompt that stay pending for the drafter.
    """

    backend: str = "none"
    draft_tokens: int = 0
    lag: int = 0


@dataclasses.dataclass(frozen=True)
class Pending:
    """Columns of the last unit of a sequence that the next unit commits on the device.

    Without a drafter nothing is ever pending.

    Attributes:
      fold: columns for the recurrent state.
      absorb: columns for the drafter.
    """

    fold: int = 0
    absorb: int = 0


@dataclasses.dataclass(frozen=True)
class Round:
    """What one decode round did for one row.

    Attributes:
      tokens: outputs in order, or `NON_FINITE` alone if the row failed.
      drafted: tokens proposed and verified: K, or 0 for an ordinary step.
      accepted: how many of them the target accepted.
    """

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0


@dataclasses.dataclass(frozen=True)
class PrefillUnit:
    """One chunk of a prompt.

    Attributes:
      slot: state slot of the sequence.
      pages: pages of the sequence in position order; page i holds positions 64i .. 64i + 63.
      tokens: int32 [n], 1 <= n <= prefill_chunk.
      start: cache position of `tokens[0]`.
      fresh: the slot starts from the zero state (a slot's old content is never read).
      sampling: how the first token is drawn.
      sample: True on the chunk that ends the prompt: draw the first token, with the random
        number of purpose 0 at position = prompt length.
      pending: what the unit before left for this one.
    """

    slot: int
    pages: Sequence[int]
    tokens: np.ndarray
    start: int
    fresh: bool
    sampling: SamplingParams
    sample: bool
    pending: Pending = Pending()


@dataclasses.dataclass(frozen=True)
class DecodeRow:
    """One sequence in a decode dispatch.

    The row runs its anchor at `position`, then each token it produces but the last, so it
    writes cache positions `position` .. `position + limit - 1` at most.

    Attributes:
      slot: state slot of the sequence.
      pages: pages of the sequence in position order.
      token: the anchor: newest token, known but not yet run.
      position: cache position of the anchor.
      limit: most tokens this row may still produce, >= 1.
      stop_token_ids: a round that produces one of them is the last round of the dispatch.
      sampling: how tokens are drawn.
      pending: what the unit before left for this one.
    """

    slot: int
    pages: Sequence[int]
    token: int
    position: int
    limit: int
    stop_token_ids: frozenset[int]
    sampling: SamplingParams
    pending: Pending = Pending()


class PendingPrefill(Protocol):
    """A prefill chunk on its way."""

    def result(self) -> int | None:
        """Blocks until the chunk has run, also where there is nothing to return: the moment
        of return is the end of the unit in the time windows.

        Returns the first token, `NON_FINITE`, or None if `sample` was False.
        """


class PendingDecode(Protocol):
    """A decode dispatch on its way."""

    def result(self) -> list[list[Round]]:
        """Blocks until the tokens are on the host.

        Returns the rounds of each row, in order. All rows ran the same number of rounds,
        except that a row ends at its own `NON_FINITE`; the dispatch ends early after the round
        in which any row produced a stop token or reached its limit. Without a drafter a round
        produces one token, and the state of a slot has advanced by exactly the tokens
        produced. With one, the outputs of the last round are pending: the next unit of the
        sequence says how many of them to commit.
        """


class Programs(Protocol):
    """The compiled programs of the device, called by one thread only.

    Any exception from a method or from a pending result means that the device state can no
    longer be trusted.
    """

    lane_buckets: tuple[int, ...]
    """Row counts that were compiled, ascending; the last is the largest dispatch."""

    prefill_chunk: int
    """Most tokens of one prefill unit."""

    recompilations: int
    """Programs compiled after start-up; anything but 0 is a defect."""

    drafting: Drafting

    def prefill(self, unit: PrefillUnit) -> PendingPrefill: ...

    def decode(self, rows: Sequence[DecodeRow], rounds: int) -> PendingDecode: ...

    def release(self, slot: int) -> None:
        """Tells that the slot's content is no longer needed."""
