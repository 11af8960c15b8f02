"""Encoding in pieces: row blocks, threads, input types and memory do not change a single word."""

from __future__ import annotations

import os
import tracemalloc
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.artifact import (
    encode_fp8_rows,
    encode_grouped,
    encode_nvfp4,
    nvfp4_divisor,
    pack_object,
    unpack_object,
)
from ninfer_jax.artifact.assemble import assembled
from ninfer_jax.artifact.direct import bfloat16_values, bfloat16_words
from ninfer_jax.artifact.formats import FP8, GROUPED_FORMATS
from ninfer_jax.errors import ArtifactError

FORMATS = (*GROUPED_FORMATS, FP8, "nvfp4")
CUTS = [0, 1, 130, 131, 640]


def encoded(format: str, values: np.ndarray, divisor=None) -> dict[str, np.ndarray]:
    if format == "nvfp4":
        fields = encode_nvfp4(values, divisor)
    elif format == FP8:
        fields = encode_fp8_rows(values)
    else:
        fields = encode_grouped(values, format)
    return dict(zip(("codes", "scales", "divisor"), fields, strict=False))


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name])
        for name in left
    )


@pytest.fixture(scope="module")
def words() -> np.ndarray:
    """BF16 words of 640 rows by 2000 columns: three tasks, rows of many magnitudes, zeros."""
    generator = np.random.default_rng(11)
    values = generator.standard_normal((640, 2000), dtype=np.float32)
    values *= np.exp2(generator.integers(-20, 4, (640, 1))).astype(np.float32)
    values[generator.random(values.shape) < 0.05] = -0.0
    values[7], values[8, 64:128] = 0, -0.0
    return bfloat16_words(values)


@pytest.mark.parametrize("format", FORMATS)
def test_row_blocks_give_the_words_of_the_whole(format, words):
    whole = encoded(format, words)
    pieces = [words[begin:end] for begin, end in pairwise(CUTS)]
    divisor = nvfp4_divisor(iter(pieces)) if format == "nvfp4" else None
    parts = [encoded(format, piece, divisor) for piece in pieces]
    for name in ("codes", "scales"):
        assert np.array_equal(np.concatenate([part[name] for part in parts]), whole[name])
    assert divisor is None or divisor == whole["divisor"]


@pytest.mark.parametrize("format", FORMATS)
def test_threads_and_input_types_do_not_matter(format, words, monkeypatch):
    reference = encoded(format, words)
    assert same(encoded(format, bfloat16_values(words)), reference)
    assert same(encoded(format, words.view(ml_dtypes.bfloat16)), reference)
    assert same(encoded(format, np.asfortranarray(words)), reference)
    doubled = np.repeat(words, 2, axis=0)[::2]
    assert same(encoded(format, doubled), reference)
    payload = pack_object(format, reference, words.shape) if format != "nvfp4" else b""
    for cores in (1, 5):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert same(encoded(format, words), reference)
        if payload:
            assert pack_object(format, reference, words.shape) == payload
            assert same(unpack_object(format, words.shape, payload), reference)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_other_types_are_the_callers_fault(format, dtype):
    with pytest.raises(ValueError, match="expected float32, bfloat16 or BF16 words in uint16"):
        encoded(format, np.zeros((2, 64), dtype))


@pytest.mark.parametrize("format", FORMATS)
def test_the_first_bad_row_is_named_whichever_thread_meets_it(format, words):
    wrong = words.copy()
    wrong[400:, 3] = 0x7FC0
    with pytest.raises(ArtifactError, match="row 400 holds infinity or NaN"):
        encoded(format, wrong)
    wrong[300, 1999] = 0xFF80
    with pytest.raises(ArtifactError, match="row 300 holds infinity or NaN"):
        encoded(format, wrong)


def test_a_divisor_is_found_over_blocks_and_may_be_given(words):
    largest = float(np.abs(bfloat16_values(words)).max())
    assert nvfp4_divisor([words[:5], words[5:]]) == np.float32(2688 / largest)
    assert nvfp4_divisor([np.zeros((1, 16), np.float32)]) == 1
    with pytest.raises(ArtifactError, match="row 6 holds infinity or NaN"):
        nvfp4_divisor([words[:5], np.array([[0], [0x7F80]], np.uint16)])
    for wrong in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ArtifactError, match="expected finite and above 0"):
            encode_nvfp4(words, wrong)
    codes, scales, _ = encode_nvfp4(np.full((1, 16), 100, np.float32), np.float32(1e38))
    assert set(codes.reshape(-1).tolist()) == {0x77} and scales.tolist() == [[0x7E]]


@pytest.mark.parametrize("format", FORMATS)
def test_bf16_is_never_widened_as_a_whole(format, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    words = np.full((4096, 4096), 0x3F80, np.uint16)
    tracemalloc.start()
    fields = encoded(format, words)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    stored = sum(field.nbytes for field in fields.values())
    assert peak - stored < 16e6, "a float32 copy of the matrix has 67 MB"


def test_assembled_bytes_exist_once():
    tracemalloc.start()
    payload = assembled(1 << 24, lambda array: array[3:5].fill(7))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert payload == bytes(3) + b"\x07\x07" + bytes((1 << 24) - 5)
    assert type(payload) is bytes and peak < 1.5 * (1 << 24)
