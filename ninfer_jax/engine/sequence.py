"""One request while the engine owns it: its ledger of tokens, pages and slot, on the host.

The ledger. `frontier` F is the number of tokens already run through the model (E in the
descriptions of the cache), `known` the number of tokens of prompt and output. While a
sequence decodes, between units, known = F + 1: the newest token is known but not yet run.

      prompt of 5, chunk 4:   bound          F 0  known 5
                              chunk of 4     F 4  known 5
                              chunk of 1     F 5  known 5, then the first token: known 6
                              3 tokens       F 8  known 9
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum

import numpy as np

from ninfer_jax.engine.draft_counts import DraftCounts
from ninfer_jax.engine.invariants import InvariantError
from ninfer_jax.engine.pages import pages_for
from ninfer_jax.engine.request import (
    FinishReason,
    Request,
    Sink,
    TokenVerdict,
    Usage,
    total_tokens,
)
from ninfer_jax.engine.timeline import Timeline
from ninfer_jax.engine.units import (
    NON_FINITE,
    DecodeRow,
    Drafting,
    Pending,
    PrefillUnit,
    Round,
)


class Phase(enum.Enum):
    """Where a sequence stands; it only moves downwards."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


@dataclasses.dataclass(frozen=True)
class Commit:
    """What is kept of the tokens that one unit produced for one sequence.

    Attributes:
      token_ids: the N tokens kept, in order; what was produced after them never happened.
      finish: why the sequence ends with the last of them, or None.
      non_finite: the model failed at the token after them: the sequence fails.
    """

    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    non_finite: bool = False


class Sequence:
    """A request, its sink and its ledger; owned by the worker from submission on.

    The pages for the prompt and the whole output limit are bound at once, so no unit of the
    sequence can ever need a page that it does not have.
    """

    def __init__(self, request: Request, sink: Sink, submitted: float):
        self.request = request
        self.sink = sink
        self.phase = Phase.WAITING
        self.pages: tuple[int, ...] = ()
        self.slot: int | None = None
        self.frontier = 0
        self.output_ids: list[int] = []
        self.pending: Pending | None = Pending()
        self._settled: int | None = None
        self._drafted: tuple[bool, ...] = ()
        self.drafts = DraftCounts()
        self.timeline = Timeline(submitted)
        self.page_demand = pages_for(total_tokens(request.prompt_ids, request.max_tokens))
        self._prompt = np.asarray(request.prompt_ids, np.int32)

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def known(self) -> int:
        return self.prompt_length + len(self.output_ids)

    @property
    def remaining(self) -> int:
        """Output tokens that may still be committed."""
        return self.request.max_tokens - len(self.output_ids)

    @property
    def limit_reason(self) -> FinishReason:
        """What it is called when no further token may be committed."""
        if self.request.context_limited:
            return FinishReason.CONTEXT_CAPACITY
        return FinishReason.OUTPUT_LIMIT

    def bind(self, pages: collections.abc.Sequence[int], slot: int, now: float) -> None:
        """Enters the running set with the pages it asked for and a state slot."""
        self._require_phase(Phase.WAITING)
        if len(pages) != self.page_demand:
            raise InvariantError(
                "a request is bound with the pages of its prompt and output limit",
                f"{len(pages)} pages, {self.page_demand} needed",
            )
        self.pages = tuple(pages)
        self.slot = slot
        self.phase = Phase.PREFILLING
        self.timeline.bind(now)

    def prefill_unit(self, prefill_chunk: int) -> PrefillUnit:
        """The next chunk of the prompt, at most `prefill_chunk` tokens."""
        self._require_phase(Phase.PREFILLING)
        start = self.frontier
        tokens = self._prompt[start : start + prefill_chunk]
        ends_prompt = start + len(tokens) == self.prompt_length
        return PrefillUnit(
            slot=self._bound_slot(),
            pages=self.pages,
            tokens=tokens,
            start=start,
            fresh=start == 0,
            sampling=self.request.sampling,
            sample=ends_prompt and self.request.max_tokens > 0,
            pending=self._bound_pending(),
        )

    def complete_prefill(self, unit: PrefillUnit, lag: int) -> bool:
        """Moves the frontier past a chunk that has run; True if the prompt is complete.

        `lag` columns of it stay pending for the drafter.
        """
        self._require_phase(Phase.PREFILLING)
        if unit.start != self.frontier:
            raise InvariantError(
                "prefill chunks are contiguous",
                f"a chunk at {unit.start}, the frontier at {self.frontier}",
            )
        self.frontier += len(unit.tokens)
        self.pending = Pending(absorb=lag)
        return self.frontier == self.prompt_length

    def decode_row(self) -> DecodeRow:
        """This sequence as a row of the next decode dispatch."""
        self._require_phase(Phase.DECODING)
        return DecodeRow(
            slot=self._bound_slot(),
            pages=self.pages,
            token=self.output_ids[-1],
            position=self.frontier,
            limit=self.remaining,
            stop_token_ids=self.request.stop_token_ids,
            sampling=self.request.sampling,
            pending=self._bound_pending(),
        )

    def decoded(self, rounds: collections.abc.Sequence[Round], drafting: Drafting) -> None:
        """Notes how the tokens about to be previewed came about: those of the last round are
        pending on the device until `commit` says how many of them are kept."""
        self.drafts.add(rounds, drafting)
        if drafting.draft_tokens:
            self._settled = sum(len(one.tokens) for one in rounds[:-1])
            self._drafted = tuple(
                index < one.accepted for one in rounds for index in range(len(one.tokens))
            )

    def drafted(self, commit: Commit) -> tuple[bool, ...]:
        """Which of the tokens just decoded were accepted drafts; () where nothing was drafted."""
        return self._drafted[: len(commit.token_ids)]

    def preview(self, produced: collections.abc.Sequence[int]) -> Commit:
        """Walks the produced tokens one by one and decides how many are kept.

        Pushes each kept token through the output decoder, so call it once per unit, and then
        `commit`. A stop token is kept and counted, but not pushed: its text is withheld. The
        walk ends at the first of: non-finite logits, a stop token, a stop string completed,
        the output limit.
        """
        if not 1 <= len(produced) <= self.remaining:
            raise InvariantError(
                "a row produces at least one token and at most its limit",
                f"{len(produced)} tokens, limit {self.remaining}",
            )
        for count, token in enumerate(produced, start=1):
            if token == NON_FINITE:
                return Commit(tuple(produced[: count - 1]), non_finite=True)
            finish = None
            if token in self.request.stop_token_ids:
                finish = FinishReason.STOP_TOKEN
            elif self.request.decoder.push(token) is TokenVerdict.STOP_STRING:
                finish = FinishReason.STOP_STRING
            elif count == self.remaining:
                finish = self.limit_reason
            if finish is not None:
                return Commit(tuple(produced[:count]), finish)
        return Commit(tuple(produced))

    def commit(self, commit: Commit, now: float) -> None:
        """Makes previewed tokens part of the sequence.

        The first token comes from the last prompt column, so the frontier stays; later ones
        each ran the token before them. With a drafter exactly the kept tokens of the last
        round are left to be committed on the device. A sequence that ends before its last
        round has a device state that ran further than its frontier; it is discarded.
        """
        if self.phase is Phase.PREFILLING:
            self.phase = Phase.DECODING
        else:
            self._require_phase(Phase.DECODING)
            self.frontier += len(commit.token_ids)
            if self._settled is not None:
                kept = len(commit.token_ids) - self._settled
                self.pending = Pending(kept, kept) if kept >= 0 else None
        self.output_ids.extend(commit.token_ids)
        if commit.token_ids:
            self.timeline.commit(now)

    def visible_text(self) -> tuple[str, str]:
        """Takes the text that is safe to show now, as (reasoning, content)."""
        return self.request.decoder.take()

    def closing_text(self) -> tuple[str, str]:
        """Takes all text, also what was held back, as (reasoning, content); ends the output."""
        reasoning, content = self.request.decoder.take()
        held_reasoning, held_content = self.request.decoder.finish()
        return reasoning + held_reasoning, content + held_content

    def finish(self) -> tuple[tuple[int, ...], int | None]:
        """Ends the sequence, in whatever phase; returns the pages and slot it held."""
        if self.phase is Phase.FINISHED:
            raise InvariantError("a request ends exactly once", f"request {self.request_id} twice")
        pages, slot = self.pages, self.slot
        self.phase = Phase.FINISHED
        self.pages, self.slot = (), None
        return pages, slot

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_length,
            completion_tokens=len(self.output_ids),
            reasoning_tokens=self.request.decoder.reasoning_tokens,
        )

    def check(self) -> None:
        """Raises `InvariantError` unless the ledger agrees with the phase (between units)."""
        bound = self.phase in (Phase.PREFILLING, Phase.DECODING)
        laws = {
            "a sequence holds a slot exactly while it runs": (self.slot is not None) == bound,
            "a sequence holds its pages exactly while it runs": (
                len(self.pages) == (self.page_demand if bound else 0)
            ),
            "output stays within its limit": self.remaining >= 0,
            "nothing runs before binding": self.phase is not Phase.WAITING or self.frontier == 0,
            "a prompt is incomplete while it is prefilled": (
                self.phase is not Phase.PREFILLING
                or (self.frontier < self.prompt_length and not self.output_ids)
            ),
            "known tokens = tokens run + 1 while decoding": (
                self.phase is not Phase.DECODING or self.known == self.frontier + 1
            ),
            "a sequence that decodes may still produce": (
                self.phase is not Phase.DECODING or self.remaining >= 1
            ),
        }
        for law, holds in laws.items():
            if not holds:
                raise InvariantError(
                    law,
                    f"request {self.request_id} {self.phase.value}, frontier {self.frontier}, "
                    f"known {self.known}, remaining {self.remaining}, slot {self.slot}, "
                    f"{len(self.pages)} pages",
                )

    def _bound_slot(self) -> int:
        if self.slot is None:
            raise InvariantError(
                "a running sequence has a slot", f"request {self.request_id} has none"
            )
        return self.slot

    def _bound_pending(self) -> Pending:
        if self.pending is None:
            raise InvariantError(
                "the device never runs past the frontier of a sequence that goes on",
                f"request {self.request_id}, frontier {self.frontier}",
            )
        return self.pending

    def _require_phase(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise InvariantError(
                f"this step belongs to the phase {phase.value}",
                f"request {self.request_id} {self.phase.value}",
            )
