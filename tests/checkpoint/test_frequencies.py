"""Rows of the proposal head: order, forced ids, file forms, bad files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ninfer_jax.checkpoint.from_huggingface.frequencies import (
    proposal_tokens,
    special_tokens,
    token_counts,
)
from ninfer_jax.errors import ArtifactError


def reference(counts, forced, rows):
    """The construction of the specification, in plain Python."""
    order = sorted(range(len(counts)), key=lambda token: -counts[token])
    chosen = [token for token in order if token not in forced][: rows - len(forced)]
    chosen += sorted(forced)
    return sorted(chosen, key=lambda token: -counts[token])


def test_worked_example():
    tokens = proposal_tokens(np.array([5, 9, 9, 1, 0]), np.array([4]), 3)
    assert tokens.tolist() == [1, 2, 4] and tokens.dtype == np.int32


@pytest.mark.parametrize("seed", range(5))
def test_rows_follow_the_specification(seed):
    random = np.random.default_rng(seed)
    counts = random.integers(0, 8, 200)
    forced = np.sort(random.choice(200, 13, replace=False))
    for rows in (13, 50, 200):
        tokens = proposal_tokens(counts, forced, rows)
        assert tokens.tolist() == reference(counts.tolist(), forced.tolist(), rows)
        assert len(set(tokens.tolist())) == rows and set(forced) <= set(tokens.tolist())
    assert len(proposal_tokens(counts, forced)) == 200, "a small vocabulary is taken whole"


def test_special_tokens_come_from_both_files():
    tokenizer = {"added_tokens": [{"id": 7, "special": True}, {"id": 3, "special": False}]}
    config = {"added_tokens_decoder": {"5": {"special": True}, "7": {}, "1": {"special": False}}}
    resources = {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    assert special_tokens(resources).tolist() == [5, 7]


def test_more_special_tokens_than_rows():
    with pytest.raises(ArtifactError, match="4 special tokens do not fit a proposal head of 3"):
        proposal_tokens(np.zeros(9, np.int64), np.arange(4), 3)


def test_three_forms_of_a_file(tmp_path):
    table = np.array([[4, 0, 9, 7], [1, 1, 1, 1]], "<i8")
    (tmp_path / "a.bin").write_bytes(table.tobytes())
    np.save(tmp_path / "b.npy", table)
    np.save(tmp_path / "c.npy", table[0])
    (tmp_path / "d.txt").write_text("2 9\n\n0 4\n3 7\n")
    for name in ("a.bin", "b.npy", "c.npy", "d.txt"):
        assert token_counts(tmp_path / name, 4, 3).tolist() == [4, 0, 9], name


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.bin", b"1" * 31, "31 bytes are no rows of 4 int64 counts"),
        ("a.bin", b"", "0 bytes are no rows of 4 int64 counts"),
        ("a.bin", np.array([1, -1, 0, 0], "<i8").tobytes(), "token 1 has a negative count"),
        ("a.npy", b"\x93NUMPY\1", "not readable as .npy"),
        ("a.txt", b"1 2\n1 3\n", "line 2: token 1 occurs twice"),
        ("a.txt", b"4 2\n", r"line 1: token 4 is outside \[0, 4\)"),
        ("a.txt", b"1\n", "line 1: b'1', expected 'id count'"),
        ("a.txt", b"1 -2\n", "expected 'id count'"),
    ],
)
def test_bad_files_are_named(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=message) as caught:
        token_counts(tmp_path / name, 4, 3)
    assert name in caught.value.message


def test_a_table_of_another_vocabulary_and_a_missing_file(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 5), np.int64))
    with pytest.raises(ArtifactError, match=r"int64 \[2, 5\], expected int64 \[rows, 4\]"):
        token_counts(tmp_path / "a.npy", 4, 3)
    with pytest.raises(ArtifactError, match="cannot be read"):
        token_counts(tmp_path / "none", 4, 3)
