"""Any cut of a prompt, rows of a batch, and memory that is not in use."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.model.building import ADDRESSABLE, Driver, largest_difference, small_model

LENGTH = 150
TABLE = np.array([11, 3, 7])
"""Pages of the sequence: neither contiguous nor ascending."""
PAGES, SLOTS = 13, 3
TOLERANCE = 1e-4


def tokens(seed: int = 0, length: int = LENGTH) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, ADDRESSABLE, length)


def run(pieces, codec: str = "f32") -> dict[str, np.ndarray]:
    """Logits and everything remembered of one sequence, run in pieces (length, width)."""
    driver = Driver(small_model(), PAGES, SLOTS, codec)
    logits = driver.feed(tokens(), 1, TABLE, pieces)
    return {"logits": logits} | driver.remembered(1, TABLE, LENGTH)


@functools.cache
def whole() -> dict[str, np.ndarray]:
    return run([(LENGTH, 192)])


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([(64, 64), (64, 64), (22, 64)], id="64+64+22"),
        pytest.param([(128, 128), (22, 64)], id="128+22"),
        pytest.param([(64, 64), (86, 128)], id="64+86"),
        pytest.param([(64, 192), (64, 128), (22, 192)], id="in wider calls"),
    ],
)
def test_cuts_on_the_chunk_grid_keep_every_bit(pieces):
    cut, expected = run(pieces), whole()
    for name, values in expected.items():
        np.testing.assert_array_equal(cut[name], values, err_msg=name)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([(1, 64), (149, 192)], id="1+149"),
        pytest.param([(149, 192), (1, 64)], id="149+1"),
        pytest.param([(63, 64), (87, 128)], id="63+87"),
        pytest.param([(65, 128), (85, 128)], id="65+85"),
        pytest.param([(37, 64), (100, 128), (13, 64)], id="37+100+13"),
        pytest.param([(2, 16), (16, 16), (132, 192)], id="short calls first"),
        pytest.param([(128, 128), (16, 16), (6, 16)], id="short calls last"),
        pytest.param([(3, 16)] * 50, id="threes"),
        pytest.param([(64, 64), (0, 64), (86, 128)], id="an empty piece"),
    ],
)
def test_cuts_anywhere_agree(pieces):
    cut = run(pieces)
    print(largest_difference(cut, whole()))
    assert largest_difference(cut, whole()) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_cuts_of_a_long_prompt_agree(seed):
    """1,000 tokens in pieces of 1 to 192, mixing the token-by-token and the chunked form."""
    length, rng = 1000, np.random.RandomState(seed)
    table = rng.permutation(40)[: -(-length // 64)]
    pieces, left = [], length
    while left:
        piece = min(left, int(rng.choice([1, 2, 5, 16, 17, 63, 64, 65, 100, 128, 192])))
        pieces.append((piece, next(width for width in (1, 16, 64, 128, 192) if width >= piece)))
        left -= piece
    ids = tokens(seed, length)
    kept = []
    for cut in (pieces, [(192, 192)] * (length // 192) + [(length % 192, 192)]):
        driver = Driver(small_model(), 40, SLOTS, "f32")
        logits = driver.feed(ids, 1, table, cut)
        kept.append({"logits": logits} | driver.remembered(1, table, length))
    assert largest_difference(*kept) <= TOLERANCE


def test_token_by_token_agrees():
    cut = run([(1, 1)] * LENGTH)
    print(largest_difference(cut, whole()))
    assert largest_difference(cut, whole()) <= TOLERANCE


def test_prompt_then_decode_agrees():
    cut = run([(100, 128)] + [(1, 1)] * 50)
    assert largest_difference(cut, whole()) <= TOLERANCE


def test_bf16_pages_remember_the_same_in_pieces():
    """What is attended is what is stored, also within the call that writes it."""
    expected = run([(LENGTH, 192)], codec="bf16")
    cut = run([(64, 64), (86, 128)], codec="bf16")
    for name, values in expected.items():
        np.testing.assert_array_equal(cut[name], values, err_msg=name)


def test_interleaved_sequences_do_not_touch_each_other():
    """Two sequences take turns in other slots and pages; a third slot is reused."""
    driver = Driver(small_model(), PAGES, SLOTS)
    other_table, third_table = np.array([0, 12, 5]), np.array([2, 4, 6])
    driver.feed(tokens(7), 0, other_table, [(64, 64), (64, 64)])  # left behind, then reused
    first, second = tokens(), tokens(8)
    out = []
    for start, length in ((0, 64), (64, 64), (128, 22)):
        for sequence, slot, table in ((first, 1, TABLE), (second, 0, third_table)):
            ids = np.zeros((1, 64), np.int32)
            ids[0, :length] = sequence[start : start + length]
            logits = driver.call(ids, [slot], table[None], [start], [length], [start == 0])
            if slot == 1:
                out.append(logits[0, :length])
    kept = {"logits": np.concatenate(out)} | driver.remembered(1, TABLE, LENGTH)
    for name, values in whole().items():
        np.testing.assert_array_equal(kept[name], values, err_msg=name)
    alone = Driver(small_model(), PAGES, SLOTS)
    alone.feed(second, 2, other_table, [(64, 64), (64, 64), (22, 64)])
    expected = alone.remembered(2, other_table, LENGTH)
    for name, values in driver.remembered(0, third_table, LENGTH).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
