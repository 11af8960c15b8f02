"""The policy: order of admission, bounded overtaking, turns of prefill, rounds."""

from __future__ import annotations

import dataclasses
import random

import pytest

from ninfer_jax.engine.scheduler import Scheduler
from ninfer_jax.engine.sequence import Phase


@dataclasses.dataclass(eq=False)
class Job:
    """What the policy may know of a sequence."""

    request_id: int
    page_demand: int
    phase: Phase = Phase.WAITING


def plan(scheduler, waiting=(), running=(), pages=100, slots=8):
    return scheduler.plan(list(waiting), list(running), free_pages=pages, free_slots=slots)


def test_first_come_first_served():
    jobs = [Job(i, 10) for i in range(5)]
    scheduler = Scheduler(overtake_limit=2, rounds_per_dispatch=16)
    assert plan(scheduler, jobs, slots=3).admit == tuple(jobs[:3])
    assert plan(scheduler, jobs, pages=25).admit == tuple(jobs[:2])


def test_a_blocked_head_is_overtaken_a_bounded_number_of_times():
    scheduler = Scheduler(overtake_limit=2, rounds_per_dispatch=16)
    head = Job(0, 90)
    overtaken = 0
    for index in range(1, 20):
        young = Job(index, 5)
        admitted = plan(scheduler, [head, young], pages=20).admit
        overtaken += young in admitted
    assert overtaken == 2
    assert head in plan(scheduler, [head], pages=95).admit


def test_prefill_turns_go_round():
    scheduler = Scheduler(overtake_limit=1, rounds_per_dispatch=16)
    jobs = [Job(i, 1, Phase.PREFILLING) for i in range(3)]
    turns = [plan(scheduler, running=jobs).prefill.request_id for _ in range(7)]
    assert turns == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("waiting", "prefilling", "rounds"), [(0, 0, 16), (1, 0, 1), (0, 1, 1), (1, 1, 1)]
)
def test_a_dispatch_is_long_only_when_nobody_waits(waiting, prefilling, rounds):
    scheduler = Scheduler(overtake_limit=1, rounds_per_dispatch=16)
    running = [Job(0, 1, Phase.DECODING)]
    running += [Job(1 + i, 1, Phase.PREFILLING) for i in range(prefilling)]
    queue = [Job(10 + i, 1) for i in range(waiting)]
    assert plan(scheduler, queue, running, slots=0).rounds == rounds


@pytest.mark.parametrize("seed", range(4))
def test_everyone_is_admitted_and_nothing_is_overbooked(seed):
    """Random arrivals and ends: no job starves, pages and slots are never exceeded."""
    rng = random.Random(seed)
    lanes, total = 4, 64
    scheduler = Scheduler(overtake_limit=lanes, rounds_per_dispatch=8)
    waiting: list[Job] = []
    running: list[tuple[Job, int]] = []
    arrived: dict[int, int] = {}
    for step in range(30_000):
        if rng.random() < 0.4:
            job = Job(step, rng.randrange(1, total + 1))
            waiting.append(job)
            arrived[step] = step
        running = [(job, left - 1) for job, left in running if left > 1]
        used = sum(job.page_demand for job, _ in running)
        jobs = [job for job, _ in running]
        made = plan(scheduler, waiting, jobs, total - used, lanes - len(running))
        assert sum(job.page_demand for job in made.admit) <= total - used
        assert len(made.admit) <= lanes - len(running)
        if not running and waiting:
            assert waiting[0] in made.admit
        for job in made.admit:
            waiting.remove(job)
            job.phase = Phase.DECODING
            running.append((job, rng.randrange(1, 4)))
            del arrived[job.request_id]
        if len(waiting) > 40:
            waiting.clear()
            arrived.clear()
