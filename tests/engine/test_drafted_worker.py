"""Drafting behind the worker: requests that end inside a block, and who is left beside them."""

from __future__ import annotations

import itertools

import pytest

from ninfer_jax.engine.inbox import Inbox
from ninfer_jax.engine.pages import pages_for
from ninfer_jax.engine.programs import DevicePrograms
from ninfer_jax.engine.request import Delta, Finished, FinishReason, Request, SamplingParams
from ninfer_jax.engine.roster import Roster
from ninfer_jax.engine.scheduler import Scheduler
from ninfer_jax.engine.sequence import Sequence
from ninfer_jax.engine.worker import Worker
from ninfer_jax.text.output import OutputDecoder
from tests.engine.drafting import PROMPTS, SHAPE, drafted, plain, prompt, reference, replay

BLOCK = 5
"""Outputs of a round in which all of 4 drafted tokens are accepted. Index 0 of a text comes
from the prompt, so with `replay(4)` the blocks are 1 .. 5, 6 .. 10, 11 .. 15 and so on."""
DRAFTERS = [None, ("replay", 4), ("mtp", 4), ("dflash2", 7)]
LIMIT = 60


def programs_of(drafter: tuple[str, int] | None) -> DevicePrograms:
    if drafter is None:
        return plain()
    return replay(drafter[1]) if drafter[0] == "replay" else drafted(*drafter)


class Spelling:
    """A tokenizer that spells every id as `<id>`."""

    def token_bytes(self, token_id: int, *, hide_special: bool) -> bytes:
        return f"<{token_id}>".encode()


def spelled(tokens: list[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


class Heard:
    """One request and what was said about it."""

    def __init__(self, request: Request, slot: int):
        self.request = request
        self.slot = slot
        self.events: list = []

    @property
    def tokens(self) -> list[int]:
        return [t for event in self.events if isinstance(event, Delta) for t in event.token_ids]

    @property
    def text(self) -> str:
        return "".join(event.content for event in self.events if isinstance(event, Delta))

    @property
    def finished(self) -> Finished:
        (last,) = [event for event in self.events if isinstance(event, Finished)]
        assert last is self.events[-1]
        return last


class Bench:
    """A worker without a thread; slots are taken in the order of submission."""

    def __init__(self, programs: DevicePrograms, rounds: int = SHAPE.rounds_per_dispatch):
        self.programs = programs
        self.inbox = Inbox()
        self.roster = Roster(total_pages=SHAPE.pages, total_slots=4)
        scheduler = Scheduler(overtake_limit=4, rounds_per_dispatch=rounds)
        # A clock that stands still: the pace never shortens a dispatch.
        self.worker = Worker(self, self.inbox, self.roster, scheduler, clock=lambda: 0.0)
        self.asked: list[tuple[int, int]] = []
        self._numbers = itertools.count(1)
        self._slots: dict[int, int] = {}

    def __getattr__(self, name: str):
        return getattr(self.programs, name)

    def decode(self, rows, rounds: int):
        """Notes (rows, rounds) of each dispatch."""
        self.asked.append((len(rows), rounds))
        return self.programs.decode(rows, rounds)

    def submit(self, slot: int, *, stop_strings=(), limit: int = LIMIT, **fields) -> Heard:
        """A greedy request with the prompt of a slot, which it must be given."""
        fields.setdefault("host_paced", bool(stop_strings))
        fields.setdefault("stop_token_ids", frozenset())
        request = Request(
            request_id=next(self._numbers),
            prompt_ids=tuple(prompt(slot, PROMPTS[slot]).tolist()),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=limit,
            decoder=OutputDecoder(Spelling(), thinking_open=False, stop_strings=stop_strings),
            **fields,
        )
        heard = Heard(request, slot)
        self._slots[request.request_id] = slot
        self.inbox.submit(Sequence(request, heard.events.append, 0.0))
        return heard

    def cycle(self) -> None:
        """One turn, with the accounts checked behind it."""
        self.worker.poll()
        self.worker.cycle()
        self.roster.check()
        for sequence in self.roster.running:
            assert sequence.slot == self._slots[sequence.request_id], "the record is of its slot"

    def run(self) -> None:
        """Until nobody is left."""
        self.cycle()
        while not self.roster.empty:
            self.cycle()
        assert (self.roster.pages.used, self.roster.slots.used) == (0, 0)


def assert_whole(heard: Heard, limit: int = LIMIT) -> None:
    """The request ran to its limit, and nothing beside it changed its text."""
    assert heard.finished.reason is FinishReason.OUTPUT_LIMIT
    assert heard.finished.usage.completion_tokens == limit
    assert heard.tokens == reference()[heard.slot][:limit]
    assert heard.text == spelled(heard.tokens)


@pytest.mark.parametrize("drafter", DRAFTERS, ids=str)
def test_cancelled_between_rounds_while_another_goes_on(drafter):
    """What it held is free at once, and whoever comes next into its slot starts clean."""
    bench = Bench(programs_of(drafter), rounds=2)
    first, second = bench.submit(0), bench.submit(1)
    while len(second.tokens) < 8:
        bench.cycle()
    assert not any(isinstance(event, Finished) for event in (*first.events, *second.events))
    before = len(first.tokens)
    bench.inbox.cancel(first.request.request_id)
    bench.cycle()
    assert bench.roster.pages.used == pages_for(PROMPTS[1] + LIMIT)
    assert bench.roster.slots.used == 1
    third = bench.submit(0)
    bench.run()
    assert first.finished.reason is FinishReason.CANCELLED
    assert before <= len(first.tokens) < LIMIT
    assert first.finished.usage.completion_tokens == len(first.tokens)
    assert first.tokens == reference()[0][: len(first.tokens)]
    assert_whole(second)
    assert_whole(third)


@pytest.mark.parametrize("drafter", DRAFTERS, ids=str)
def test_cancelled_behind_its_prompt(drafter):
    """With prompt columns still waiting for the drafter."""
    bench = Bench(programs_of(drafter))
    first = bench.submit(0)
    bench.cycle()
    bench.inbox.cancel(first.request.request_id)
    second = bench.submit(0)
    bench.run()
    assert first.finished.reason is FinishReason.CANCELLED
    assert_whole(second)


def stop_string(tokens: list[int], first: int, last: int) -> str:
    """From the middle of token `first` to the middle of token `last`."""
    return spelled(tokens[first : last + 1])[1:-1]


@pytest.mark.parametrize("host_paced", [True, False])
@pytest.mark.parametrize(
    ("first", "last"),
    [(7, 7), (6, 6), (10, 10), (7, 9), (5, 6), (9, 12), (5, 11), (0, 1)],
    ids=lambda index: str(index),
)
@pytest.mark.parametrize("drafter", DRAFTERS[:3], ids=str)
def test_the_text_ends_before_a_stop_string(drafter, first, last, host_paced):
    """Inside a block, at its ends, across two and three blocks; paced or not."""
    text = reference()[2]
    stop = stop_string(text, first, last)
    begin = spelled(text).index(stop)
    kept = next(n for n in range(1, LIMIT) if stop in spelled(text[:n]))
    bench = Bench(programs_of(drafter))
    other = bench.submit(0)
    bench.cycle()
    bench.submit(1, limit=1)
    heard = bench.submit(2, stop_strings=[stop], host_paced=host_paced)
    bench.run()
    assert heard.finished.reason is FinishReason.STOP_STRING
    assert heard.text == spelled(text)[:begin]
    assert heard.tokens == text[:kept]
    assert heard.finished.usage.completion_tokens == kept
    assert_whole(other)


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, 9, 10, 11, 13])
@pytest.mark.parametrize("drafter", DRAFTERS[1:], ids=str)
def test_a_limit_inside_a_block(drafter, limit):
    bench = Bench(programs_of(drafter))
    first, second = bench.submit(0, limit=limit), bench.submit(1, limit=23)
    bench.run()
    assert_whole(first, limit)
    assert_whole(second, 23)


@pytest.mark.parametrize("at", range(5, 12))
@pytest.mark.parametrize("drafter", DRAFTERS[1:3], ids=str)
def test_a_stop_token_inside_a_block(drafter, at):
    """It is kept and counted, its text withheld; what the block has behind it never happened."""
    text = reference()[2]
    stop = text[at]
    kept = text[: text.index(stop) + 1]
    bench = Bench(programs_of(drafter))
    other, _ = bench.submit(0), bench.submit(1, limit=1)
    heard = bench.submit(2, stop_token_ids=frozenset({stop}))
    bench.run()
    assert heard.finished.reason is FinishReason.STOP_TOKEN
    assert heard.tokens == kept
    assert heard.text == spelled(kept[:-1])
    assert heard.finished.usage.completion_tokens == len(kept)
    assert_whole(other)


def test_a_lane_that_needs_the_host_gets_one_round_at_a_time():
    """Until it has ended; the others have as many as before."""
    bench = Bench(replay(4))
    other, paced = bench.submit(0), bench.submit(1, limit=20, host_paced=True)
    while not any(isinstance(event, Finished) for event in paced.events):
        bench.cycle()
    shared = [rounds for rows, rounds in bench.asked if rows == 2]
    assert len(shared) >= 20 // BLOCK - 1
    assert set(shared) == {1}
    bench.run()
    assert bench.asked[-1] == (1, SHAPE.rounds_per_dispatch)
    assert_whole(other)
    assert_whole(paced, 20)


def test_counts_of_drafting_go_with_the_request():
    """Blocks of 5 behind the first token, then ordinary steps to the limit."""
    bench = Bench(replay(4))
    heard = bench.submit(0, limit=1 + 2 * BLOCK + 3)
    bench.run()
    drafts = heard.finished.speculation
    assert (drafts.backend, drafts.draft_window) == ("replay", 4)
    assert (drafts.rounds, drafts.drafted_tokens, drafts.accepted_tokens) == (2, 8, 8)
    assert drafts.fallback_steps == 3
    assert drafts.accepted_per_position == (2, 2, 2, 2)
