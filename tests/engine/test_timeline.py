"""The time windows, on readings of a clock that the test makes."""

from __future__ import annotations

import pytest

from ninfer_jax.engine.timeline import Pace, Timeline, UnitClock


def test_overlapping_units_count_no_time_twice():
    clock = UnitClock()
    assert clock.complete(0.0, 2.0) == 2.0
    assert clock.complete(0.1, 2.5) == 0.5
    assert clock.complete(3.0, 3.25) == 0.25


def test_windows_of_a_request():
    """Submitted 10, bound 11, prefill 12-14 and 15-16, rounds, last token 18, outcome 18.5."""
    timeline = Timeline(10.0)
    timeline.bind(11.0)
    timeline.start_prefill(12.0)
    timeline.end_prefill(14.0)
    timeline.start_prefill(15.0)
    timeline.end_prefill(16.0)
    timeline.commit(16.0)
    timeline.decode(0.75, 8)
    timeline.decode(0.5, 4)
    timeline.commit(18.0)
    timing = timeline.timing(18.5)
    assert timing.queue_wait == 1.0
    # Wall time from the first chunk to the last, with what ran between them.
    assert timing.prefill == 4.0
    assert timing.decode == pytest.approx(1.25) and timing.rounds == 12
    assert timing.first_token == 6.0 and timing.total == 8.5
    assert timing.wall_prompt == 5.0 and timing.wall_predicted == 2.0


def test_a_request_that_never_ran_has_zeros():
    timing = Timeline(1.0).timing(3.0)
    assert timing.first_token is None
    assert (timing.prefill, timing.decode, timing.queue_wait, timing.total) == (0, 0, 0, 2.0)


def test_a_dispatch_lasts_no_longer_than_its_rounds_allow():
    pace = Pace(longest_seconds=0.1)
    assert pace.rounds(32) == 32
    pace.observe(10, 0.3)
    assert pace.rounds(32) == 3
    pace.observe(3, 0.003)
    assert pace.rounds(32) == 32
    pace.observe(1, 5.0)
    assert pace.rounds(32) == 1
