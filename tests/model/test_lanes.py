"""A row of a batch gives the same bits as alone: lanes cannot see each other.

Alone means one live row of two. A program of exactly one row and one column has no axis left
to loop over; the compiler then contracts other products and sums, so it agrees to rounding.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.model.building import ADDRESSABLE, Driver, small_model

PAGES, SLOTS = 24, 9
PROMPTS = (1, 63, 64, 65, 100, 17, 128, 40)
"""Lengths of the prompts of eight lanes."""


def tables(lane: int) -> np.ndarray:
    """Three pages that are far apart."""
    return np.array([23 - lane, lane, 8 + lane])


@functools.cache
def prepared(lane: int):
    """Tokens of a lane: the prompt, then five to be decoded."""
    return np.random.RandomState(lane).randint(0, ADDRESSABLE, PROMPTS[lane] + 5)


def prefilled() -> Driver:
    """All eight prompts in the state, each run alone."""
    driver = Driver(small_model(), PAGES, SLOTS)
    for lane, length in enumerate(PROMPTS):
        driver.feed(prepared(lane)[:length], lane, tables(lane), [(length, 128)])
    return driver


@functools.cache
def prefilled_state():
    return prefilled().state


def decode(lanes, width: int, steps: int, batch: int):
    """Runs the lanes together in a batch of `batch` rows; logits per lane, and the driver."""
    driver = Driver(small_model(), PAGES, SLOTS, state=prefilled_state())
    out = {lane: [] for lane in lanes}
    spare = batch - len(lanes)
    for step in range(0, steps, width):
        length = min(width, steps - step)
        ids = np.full((batch, width), 7, np.int32)
        for row, lane in enumerate(lanes):
            at = PROMPTS[lane] + step
            ids[row, :length] = prepared(lane)[at : at + length]
        logits = driver.call(
            ids,
            [*lanes, *[SLOTS] * spare],
            np.stack([tables(lane) for lane in lanes] + [np.array([5, 5, 5])] * spare),
            [PROMPTS[lane] + step for lane in lanes] + [0] * spare,
            [length] * len(lanes) + [0] * spare,
            [False] * batch,
        )
        for row, lane in enumerate(lanes):
            out[lane].append(logits[row, :length])
    return {lane: np.concatenate(parts) for lane, parts in out.items()}, driver


@functools.cache
def alone(lane: int, width: int):
    logits, driver = decode([lane], width, 5, 2)
    kept = driver.remembered(lane, tables(lane), PROMPTS[lane] + 5)
    return logits[lane], kept


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize(
    ("lanes", "batch"),
    [
        ((0, 1), 2),
        ((2, 3, 4, 7), 4),
        ((6, 0, 3), 4),
        ((0, 1, 2, 3, 4, 5, 6, 7), 8),
        ((7, 2), 8),
    ],
)
def test_lanes_together_have_the_bits_of_lanes_alone(lanes, batch, width):
    together, driver = decode(lanes, width, 5, batch)
    for lane in lanes:
        logits, kept = alone(lane, width)
        np.testing.assert_array_equal(together[lane], logits)
        now = driver.remembered(lane, tables(lane), PROMPTS[lane] + 5)
        for name, values in kept.items():
            np.testing.assert_array_equal(now[name], values, err_msg=f"lane {lane}: {name}")


@pytest.mark.parametrize("width", [1, 5])
def test_a_single_row_agrees(width):
    for lane in (0, 3):
        logits, kept = alone(lane, width)
        single, driver = decode([lane], width, 5, 1)
        print(lane, np.abs(single[lane] - logits).max())
        np.testing.assert_allclose(single[lane], logits, atol=1e-5, rtol=1e-5)
        now = driver.remembered(lane, tables(lane), PROMPTS[lane] + 5)
        for name, values in kept.items():
            np.testing.assert_allclose(now[name], values, atol=1e-5, rtol=1e-5)


def test_lanes_that_sit_out_keep_every_bit():
    _, driver = decode((1, 4), 1, 5, 4)
    before = Driver(small_model(), PAGES, SLOTS, state=prefilled_state())
    for lane in (0, 2, 3, 5, 6, 7):
        now = driver.remembered(lane, tables(lane), PROMPTS[lane])
        for name, values in before.remembered(lane, tables(lane), PROMPTS[lane]).items():
            np.testing.assert_array_equal(now[name], values, err_msg=f"lane {lane}: {name}")


def test_verify_width_agrees_with_single_tokens():
    """Five columns at once and five calls of one column: the same recurrence."""
    for lane in (0, 4, 6):
        single, kept = alone(lane, 1)
        block, other = alone(lane, 5)
        print(lane, np.abs(single - block).max())
        np.testing.assert_allclose(block, single, atol=1e-5, rtol=1e-5)
        for name, values in kept.items():
            np.testing.assert_allclose(other[name], values, atol=1e-5, rtol=1e-5)
