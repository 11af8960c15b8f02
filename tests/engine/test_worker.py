"""The engine's host side over fake programs: every request ends once, nothing leaks."""

from __future__ import annotations

import itertools
import random
import threading

import pytest

from ninfer_jax.engine.engine import Engine
from ninfer_jax.engine.request import (
    Delta,
    EngineInfo,
    Failed,
    Finished,
    FinishReason,
    Progress,
    Request,
    SamplingParams,
)
from ninfer_jax.engine.units import Drafting
from ninfer_jax.errors import NumericalError, QueueTimeoutError, RequestError, UnavailableError
from ninfer_jax.testing.fake_programs import FakePrograms
from ninfer_jax.text.verdict import TokenVerdict

STOP = 7
PAGES, LANES = 32, 4


class Letters:
    """A token decoder that writes `<id>` per token and stops behind a given text."""

    def __init__(self, stop: str | None = None):
        self.reasoning_tokens = 0
        self._stop = stop
        self._all = self._shown = ""

    def push(self, token_id: int) -> TokenVerdict:
        self._all += f"<{token_id}>"
        stopped = self._stop is not None and self._stop in self._all
        return TokenVerdict.STOP_STRING if stopped else TokenVerdict.CONTINUE

    def take(self) -> tuple[str, str]:
        text, self._shown = self._all[len(self._shown) :], self._all
        return "", text

    def finish(self) -> tuple[str, str]:
        return "", "."


class Listener:
    """Collects the events of one request; knows when the last one came."""

    def __init__(self):
        self.events: list = []
        self.ended = threading.Event()

    def __call__(self, event) -> None:
        assert not self.ended.is_set(), "an event after the last one"
        self.events.append(event)
        if isinstance(event, (Finished, Failed)):
            self.ended.set()

    @property
    def last(self):
        assert self.ended.wait(30), "the request never ended"
        return self.events[-1]

    @property
    def tokens(self) -> list[int]:
        return [t for event in self.events if isinstance(event, Delta) for t in event.token_ids]

    @property
    def text(self) -> str:
        return "".join(event.content for event in self.events if isinstance(event, Delta))


def counting(prompt: int, index: int) -> int:
    """100, 101, 102, ...: never a stop token."""
    return 100 + index


@pytest.fixture
def make_engine():
    """Engines over fake programs; at the end they are closed, empty, and their threads gone."""
    made: list[Engine] = []

    def make(script=counting, *, lanes: int = LANES, **options):
        programs = FakePrograms(script, pages=PAGES, slots=lanes, **options)
        info = EngineInfo(
            model_name="fake",
            architecture="fake",
            max_context=1024,
            max_concurrency=lanes,
            kv_dtype="bf16",
            kv_capacity_tokens=64 * PAGES,
            device="none",
        )
        engine = Engine(info, programs, rounds_per_dispatch=8)
        made.append(engine)
        return engine, programs

    yield make
    for engine in made:
        engine.close()
        counters = engine.counters()
        assert (counters.running, counters.waiting) == (0, 0)
        assert (counters.pages_used, counters.slots_used) == (0, 0)
    assert not [t for t in threading.enumerate() if t.name == "ninfer-engine" and t.is_alive()]


numbers = itertools.count(1)


def request(prompt: int = 10, limit: int = 20, **fields) -> Request:
    fields.setdefault("decoder", Letters())
    return Request(
        request_id=next(numbers),
        prompt_ids=tuple(range(prompt)),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=limit,
        stop_token_ids=frozenset({STOP}),
        **fields,
    )


def run(engine: Engine, wanted: Request) -> Listener:
    listener = Listener()
    engine.submit(wanted, listener)
    assert listener.last is not None
    return listener


def test_a_request_runs_to_its_limit(make_engine):
    engine, programs = make_engine()
    heard = run(engine, request(prompt=300, limit=20))
    assert heard.tokens == [100 + i for i in range(20)]
    assert heard.last.reason is FinishReason.OUTPUT_LIMIT
    assert heard.last.usage.completion_tokens == 20
    assert heard.last.usage.prompt_tokens == 300
    progress = [event.processed for event in heard.events if isinstance(event, Progress)]
    assert progress == [128, 256, 300]
    assert heard.text == "".join(f"<{100 + i}>" for i in range(20)) + "."
    timing = heard.last.timing
    assert timing.rounds == 19
    assert 0 <= timing.prefill <= timing.total and timing.decode <= timing.total
    assert max(rounds for _, rounds in programs.dispatches) == 8


def test_a_stop_token_is_counted_and_its_text_withheld(make_engine):
    engine, _ = make_engine(lambda prompt, index: STOP if index == 5 else 100 + index)
    heard = run(engine, request())
    assert heard.last.reason is FinishReason.STOP_TOKEN
    assert heard.tokens == [100, 101, 102, 103, 104, STOP]
    assert heard.last.usage.completion_tokens == 6
    assert f"<{STOP}>" not in heard.text


def test_a_stop_token_drawn_first_ends_at_once(make_engine):
    engine, _ = make_engine(lambda prompt, index: STOP)
    heard = run(engine, request())
    assert heard.tokens == [STOP]
    assert heard.last.usage.completion_tokens == 1


def test_a_stop_string_ends_at_the_token_that_completes_it(make_engine):
    """Inside a dispatch of several rounds: what came after it never happened."""
    engine, _ = make_engine()
    heard = run(engine, request(decoder=Letters(stop="<102><103>")))
    assert heard.last.reason is FinishReason.STOP_STRING
    assert heard.tokens == [100, 101, 102, 103]


@pytest.mark.parametrize(
    ("limited", "reason"),
    [(False, FinishReason.OUTPUT_LIMIT), (True, FinishReason.CONTEXT_CAPACITY)],
)
def test_a_limit_of_zero_processes_the_prompt(make_engine, limited, reason):
    engine, programs = make_engine()
    heard = run(engine, request(limit=0, context_limited=limited))
    assert heard.tokens == [] and heard.last.reason is reason
    assert programs.dispatches == []


def test_lanes_run_together_and_alike(make_engine):
    engine, programs = make_engine(lambda prompt, index: 100 * prompt + index)
    listeners = [Listener() for _ in range(12)]
    for index, listener in enumerate(listeners):
        engine.submit(request(prompt=5 + index, limit=3 + 5 * index), listener)
    for index, listener in enumerate(listeners):
        assert listener.last.reason is FinishReason.OUTPUT_LIMIT
        prompt = 5 + index
        assert listener.tokens == [100 * prompt + i for i in range(3 + 5 * index)]
    assert max(rows for rows, _ in programs.dispatches) > 1


def test_a_number_that_is_not_finite_fails_one_request_only(make_engine):
    def script(prompt, index):
        return -1 if prompt == 11 and index == 3 else 100 + index

    engine, _ = make_engine(script)
    bad, good = Listener(), Listener()
    engine.submit(request(prompt=11), bad)
    engine.submit(request(prompt=12), good)
    assert isinstance(bad.last, Failed) and isinstance(bad.last.error, NumericalError)
    assert bad.tokens == [100, 101, 102]
    assert good.last.reason is FinishReason.OUTPUT_LIMIT
    assert engine.healthy


def test_a_failing_program_fails_the_engine_and_everyone(make_engine):
    engine, programs = make_engine(lanes=1)
    programs.gate = threading.Event()
    listeners = [Listener() for _ in range(3)]
    for listener in listeners:
        engine.submit(request(), listener)
    programs.fail_next = RuntimeError("the device is gone")
    programs.gate.set()
    programs.gate = None
    for listener in listeners:
        # The first may have been dispatched before the failure was armed.
        assert isinstance(listener.last, (Failed, Finished))
    failed = [heard for heard in listeners if isinstance(heard.last, Failed)]
    assert failed and all(isinstance(heard.last.error, UnavailableError) for heard in failed)
    assert not engine.healthy
    with pytest.raises(UnavailableError):
        engine.submit(request(), Listener())


def test_a_request_that_can_never_fit_is_refused(make_engine):
    engine, _ = make_engine()
    with pytest.raises(RequestError):
        engine.submit(request(prompt=1000, limit=1000), Listener())


def test_a_deadline_passes_while_waiting(make_engine):
    engine, programs = make_engine(lanes=1)
    programs.gate = threading.Event()
    running, waiting = Listener(), Listener()
    engine.submit(request(), running)
    engine.submit(request(deadline=0.0), waiting)
    programs.gate.set()
    assert isinstance(waiting.last, Failed)
    assert isinstance(waiting.last.error, QueueTimeoutError)
    assert running.last.reason is FinishReason.OUTPUT_LIMIT


def test_cancelling_a_waiting_and_a_running_request(make_engine):
    engine, programs = make_engine(lanes=1)
    programs.gate = threading.Event()
    running, waiting = request(limit=500), request(limit=500)
    heard, queued = Listener(), Listener()
    engine.submit(running, heard)
    engine.submit(waiting, queued)
    engine.cancel(waiting.request_id)
    engine.cancel(running.request_id)
    engine.cancel(10**9)
    programs.gate.set()
    assert heard.last.reason is FinishReason.CANCELLED
    assert queued.last.reason is FinishReason.CANCELLED
    assert len(heard.tokens) < 500


def test_closing_lets_running_requests_finish_and_fails_waiting_ones(make_engine):
    engine, programs = make_engine(lanes=1)
    programs.gate = threading.Event()
    running, waiting = Listener(), Listener()
    engine.submit(request(), running)
    engine.submit(request(), waiting)
    closing = threading.Thread(target=engine.close, kwargs={"drain_seconds": 60})
    closing.start()
    programs.gate.set()
    assert running.last is not None and waiting.last is not None
    closing.join(30)
    outcomes = {type(running.last), type(waiting.last)}
    assert Failed in outcomes
    engine.close()
    with pytest.raises(UnavailableError):
        engine.submit(request(), Listener())


def test_a_sink_that_raises_hurts_nobody_else(make_engine):
    engine, _ = make_engine()

    def broken(event) -> None:
        raise RuntimeError("the listener is gone")

    engine.submit(request(limit=200), broken)
    assert run(engine, request()).last.reason is FinishReason.OUTPUT_LIMIT
    assert engine.healthy


@pytest.mark.parametrize("drafting", [Drafting(), Drafting("fake", 4, lag=1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_ends_exactly_once_and_leaks_nothing(make_engine, seed, drafting):
    """Requests of all sizes, stop tokens, cancellations at any time, blocks of any length."""
    rng = random.Random(seed)

    def script(prompt, index):
        return STOP if (prompt * 31 + index * 17) % 23 == 0 else 100 + index

    def accepts(prompt, index):
        return (prompt * 7 + index * 5) % 5

    engine, _ = make_engine(script, drafting=drafting, accepts=accepts)
    listeners = []
    for _ in range(300):
        wanted = request(prompt=rng.randrange(1, 400), limit=rng.randrange(0, 120))
        listener = Listener()
        engine.submit(wanted, listener)
        listeners.append((wanted, listener))
        if rng.random() < 0.2:
            engine.cancel(rng.choice(listeners)[0].request_id)
    for wanted, listener in listeners:
        last = listener.last
        assert isinstance(last, Finished)
        assert last.usage.completion_tokens == len(listener.tokens) <= wanted.max_tokens
        if last.reason is FinishReason.STOP_TOKEN:
            assert listener.tokens[-1] == STOP and STOP not in listener.tokens[:-1]
        prompt = len(wanted.prompt_ids)
        assert listener.tokens == [script(prompt, i) for i in range(len(listener.tokens))]
        assert last.speculation.drafted_tokens == 4 * last.speculation.rounds
    assert (engine.counters().speculation.accepted_tokens > 0) == (drafting.draft_tokens > 0)
