"""The demo's held-out accuracy, through the server and from the quantised artifact."""

from __future__ import annotations

import pytest

from tools.train_demo.accuracy import GOALS, measure


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_held_out_exact_match_reaches_the_goals(server):
    scores = measure(server.url, samples=200, parallel=4)
    assert {task: score for task, score in scores.items() if score < GOALS[task]} == {}
