"""Encoders against a scalar oracle, on inputs steered onto the rounding boundaries."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_jax.artifact import (
    encode_fp8_rows,
    encode_grouped,
    encode_nvfp4,
)
from ninfer_jax.artifact.direct import bfloat16_values, bfloat16_words
from ninfer_jax.artifact.fp8 import E4M3_VALUES
from ninfer_jax.artifact.grouped import GROUPED
from ninfer_jax.artifact.small_floats import E2M1, E4M3FN, rounded_words
from ninfer_jax.errors import ArtifactError
from tests.artifact import scalar_oracle as oracle

LARGEST = np.float32(3.4028235e38)
COLUMNS = 80
ZEROS = np.resize(np.array([0.0, -0.0, -0.0], np.float32), COLUMNS)


def repeated(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


QUICK = repeated(100)
THOROUGH = repeated(3000)


def nudged(values: np.ndarray, steps: list[int]) -> np.ndarray:
    """Move magnitudes by so many binary32 words, not past zero or the largest number."""
    bits = values.astype(np.float32).view(np.uint32)
    magnitude = (bits & 0x7FFFFFFF).astype(np.int64) + np.resize(steps, values.shape)
    moved = np.clip(magnitude, 0, 0x7F7FFFFF).astype(np.uint32) | (bits & 0x80000000)
    return moved.view(np.float32)


def signed(values: np.ndarray, signs: int) -> np.ndarray:
    """Negate the values whose bit of `signs` is set; zeros become -0.0."""
    flips = np.array([signs >> index & 1 for index in range(values.size)], bool)
    return np.where(flips, -values, values).astype(np.float32)


@st.composite
def scattered(draw, columns: int) -> np.ndarray:
    """A row of any bits: exponents within a window that may lie among the subnormals."""
    raw = np.frombuffer(draw(st.binary(min_size=4 * columns, max_size=4 * columns)), "<u4")
    top = draw(st.sampled_from([0, 1, 5, 20, 100, 103, 112, 127, 140, 200, 254]))
    below = (raw >> 23 & 0xFF).astype(np.int64) % draw(st.integers(1, 12))
    exponent = np.clip(top - below, 0, 254).astype(np.uint32)
    values = ((raw & 0x807FFFFF) | exponent << 23).view(np.float32).copy()
    values[raw % 11 == 0] = 0
    if draw(st.booleans()):
        values = bfloat16_values(np.minimum(bfloat16_words(values) & 0x7FFF, 0x7F7F))
    return signed(values, int.from_bytes(raw.tobytes()[: columns // 8 + 1], "little"))


nudges = st.lists(st.integers(-1, 1), min_size=1, max_size=7)
sign_bits = st.integers(0, (1 << 64) - 1)


@st.composite
def grouped_ties(draw, columns: int, largest: int) -> np.ndarray:
    """Half-integers times a scale; the maximum puts the scale on a binary16 number or middle."""
    word = draw(st.integers(1, 0x7BFF) | st.integers(1, 0x404) | st.sampled_from([1, 0x7BFF]))
    low = float(np.uint16(word).view(np.float16))
    middle = draw(st.sampled_from([0.0, 0.5, -0.5]))
    step = 2.0 ** max(-24, int(np.floor(np.log2(low))) - 10)
    halves = draw(
        st.lists(st.integers(-2 * largest, 2 * largest), min_size=columns, max_size=columns)
    )
    values = np.array(halves, np.float64) / 2 * low
    values[draw(st.integers(0, columns - 1))] = largest * (low + middle * step)
    values = values.astype(np.float32)
    return signed(nudged(values, draw(nudges)), draw(sign_bits))


@st.composite
def fp8_ties(draw, columns: int) -> np.ndarray:
    """Middles of E4M3FN numbers times a row scale of few bits, down to subnormal scales."""
    scale = draw(st.sampled_from([1.0, 1.5, 1.25])) * 2.0 ** draw(st.integers(-136, 118))
    words = np.array(
        draw(st.lists(st.integers(0, 0x7D), min_size=columns, max_size=columns)), np.int64
    )
    table = E4M3_VALUES.astype(np.float64)
    values = np.where(words % 3 == 0, table[words], (table[words] + table[words + 1]) / 2) * scale
    middle = draw(st.sampled_from([1.0, 1 + 2.0**-8, 1 - 2.0**-9]))
    values[draw(st.integers(0, columns - 1))] = 448 * scale * middle
    return signed(nudged(np.minimum(values, float(LARGEST)), draw(nudges)), draw(sign_bits))


@st.composite
def nvfp4_ties(draw, columns: int) -> np.ndarray:
    """E2M1 middles under scales on E4M3FN numbers and middles; a power of two as divisor."""
    power = draw(st.sampled_from([0, 7, -30, 100, 116, -110, -127]) | st.integers(-127, 116))
    thresholds = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2.5, 3.5, 5, 6])
    values = np.zeros((columns // 16, 16))
    for block in values:
        word = draw(st.integers(0, 0x7D))
        low, high = float(E4M3_VALUES[word]), float(E4M3_VALUES[word + 1])
        scale = draw(st.sampled_from([low, (low + high) / 2, low * 0.5]))
        picks = draw(st.lists(st.integers(0, 11), min_size=15, max_size=15))
        block[:15] = thresholds[picks] * draw(st.sampled_from([low, high]))
        block[15] = 6 * scale
    values = (values.reshape(-1) * 2.0**power).astype(np.float32)
    values = nudged(values, draw(nudges))
    values[draw(st.integers(0, columns - 1))] = 2688 * 2.0**power
    return signed(values, draw(sign_bits))


def rows_of(*rows) -> st.SearchStrategy:
    """A matrix of the given rows, with a row of zeros of both signs among them."""
    return st.lists(st.one_of(*rows, st.just(ZEROS)), min_size=1, max_size=3).map(np.stack)


def both_inputs(values: np.ndarray) -> list[np.ndarray]:
    """The float32 matrix, and where BF16 holds it also its words and its BF16 array."""
    words = bfloat16_words(np.clip(values, -3.3e38, 3.3e38))
    if not np.array_equal(bfloat16_values(words).view(np.uint32), values.view(np.uint32)):
        return [values]
    return [values, words, words.view(ml_dtypes.bfloat16)]


def agree_grouped(format: str, values: np.ndarray) -> None:
    expected = []
    with suppress(oracle.Refused):
        expected = [oracle.grouped_row(row.tolist(), GROUPED[format].bits) for row in values]
    for given_values in both_inputs(values):
        if not expected:
            with pytest.raises(ArtifactError):
                encode_grouped(given_values, format)
            continue
        codes, scales = encode_grouped(given_values, format)
        assert codes.tolist() == [row for row, _ in expected]
        assert scales.tolist() == [words for _, words in expected]


def agree_fp8(values: np.ndarray) -> None:
    expected = []
    with suppress(oracle.Refused):
        expected = [oracle.fp8_row(row.tolist()) for row in values]
    for given_values in both_inputs(values):
        if not expected:
            with pytest.raises(ArtifactError):
                encode_fp8_rows(given_values)
            continue
        codes, scales = encode_fp8_rows(given_values)
        assert codes.tolist() == [row for row, _ in expected]
        assert scales.tolist() == [word for _, word in expected]


def agree_nvfp4(values: np.ndarray) -> None:
    try:
        divisor = oracle.nvfp4_divisor(values.reshape(-1).tolist())
    except oracle.Refused:
        for given_values in both_inputs(values):
            with pytest.raises(ArtifactError):
                encode_nvfp4(given_values)
        return
    expected = [oracle.nvfp4_row(row.tolist(), divisor) for row in values]
    for given_values in both_inputs(values):
        codes, scales, stored = encode_nvfp4(given_values)
        assert float(stored) == divisor
        lanes = np.stack([codes & 15, codes >> 4], axis=2).reshape(values.shape)
        assert lanes.tolist() == [row for row, _ in expected]
        assert scales.tolist() == [words for _, words in expected]


def grouped_matrix(format: str) -> st.SearchStrategy:
    return rows_of(scattered(COLUMNS), grouped_ties(COLUMNS, GROUPED[format].maximum))


@pytest.mark.parametrize("format", GROUPED)
def test_grouped_rules(format):
    QUICK(given(grouped_matrix(format))(lambda values: agree_grouped(format, values)))()


@QUICK
@given(rows_of(scattered(COLUMNS), fp8_ties(COLUMNS)))
def test_fp8_rules(values):
    agree_fp8(values)


@QUICK
@given(rows_of(scattered(COLUMNS), nvfp4_ties(COLUMNS)))
def test_nvfp4_rules(values):
    agree_nvfp4(values)


def boundaries(table: list) -> np.ndarray:
    """Numbers and middles of a table, one binary32 word to either side, and both signs."""
    points = [float(entry) for entry in table]
    points += [(low + high) / 2 for low, high in pairwise(points)]
    near = [nudged(np.array(points, np.float32), [step]) for step in (-1, 0, 1)]
    return np.concatenate([*near, *[-part for part in near]])


@pytest.mark.parametrize(("format", "table"), [(E4M3FN, oracle.E4M3), (E2M1, oracle.E2M1)])
def test_every_boundary_of_the_small_floats(format, table):
    beyond = np.array([500, 3e38, np.inf, 2.0**-149, 2.0**-127], np.float32)
    values = np.concatenate([boundaries(table), beyond, -beyond])
    sign = 1 << (format.width - 1)
    for value, word in zip(values.tolist(), rounded_words(values, format).tolist(), strict=True):
        magnitude = Fraction(min(abs(value), 1e30))
        assert word == oracle.nearest(magnitude, table) + sign * oracle.negative(value), value


SPECIAL = [LARGEST, -LARGEST, 3.3895314e38, 2.0**127, 448, 65504, 65519, 65520, 1, 2.0**-14]
SPECIAL += [2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-126, 2.0**-127, 2.0**-133, 2.0**-134]
SPECIAL += [2.0**-149, 2688 / 2.0**128, np.nextafter(np.float32(2688 / 2.0**128), LARGEST), -0.0]


@pytest.mark.parametrize("value", SPECIAL, ids=lambda value: f"{value:.8g}")
def test_special_maxima(value):
    row = np.zeros((1, COLUMNS), np.float32)
    row[0, :8] = np.float32(value) * np.array([1, 0.5, -0.25, -1, 0, -0.0, 1 / 3, -0.9], np.float32)
    agree_fp8(row)
    agree_nvfp4(row)
    for format, constants in GROUPED.items():
        agree_grouped(format, row)
        with np.errstate(over="ignore"):
            scaled = row * np.float32(constants.maximum)
        if np.isfinite(scaled).all():
            agree_grouped(format, scaled)


@pytest.mark.slow
@pytest.mark.parametrize("format", GROUPED)
def test_grouped_rules_at_length(format):
    THOROUGH(given(grouped_matrix(format))(lambda values: agree_grouped(format, values)))()


@pytest.mark.slow
@THOROUGH
@given(rows_of(scattered(COLUMNS), fp8_ties(COLUMNS)))
def test_fp8_rules_at_length(values):
    agree_fp8(values)


@pytest.mark.slow
@THOROUGH
@given(rows_of(scattered(COLUMNS), nvfp4_ties(COLUMNS)))
def test_nvfp4_rules_at_length(values):
    agree_nvfp4(values)
