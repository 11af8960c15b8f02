"""The arithmetic of the profile."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from bench.memory_bound import DRAFT_TOKENS, faulty_record
from bench.round_trace import (
    Operation,
    seconds_by_section,
    section_of,
    sections_of,
    traced_operations,
)

SECTIONS = {"loop": "other", "a": "verify", "b": "draft"}


def spent(*operations: tuple[float, float, str]) -> dict[str, float]:
    found = seconds_by_section([Operation(*one) for one in operations], SECTIONS)
    return {name: round(1e9 * seconds) for name, seconds in found.items() if seconds}


def test_a_loop_does_not_count_what_it_contains():
    assert spent((0, 100, "loop"), (10, 40, "a"), (50, 90, "b")) == {
        "other": 30,
        "verify": 30,
        "draft": 40,
    }


def test_of_two_at_once_the_later_counts_and_gaps_count_for_nobody():
    assert spent((0, 30, "a"), (20, 50, "b"), (70, 80, "a")) == {"verify": 30, "draft": 30}
    assert spent((0, 50, "a"), (10, 20, "b")) == {"verify": 40, "draft": 10}


def test_an_unknown_operation_is_other():
    assert spent((0, 7, "copy.1")) == {"other": 7}
    assert spent() == {}


@pytest.mark.parametrize(
    ("path", "section"),
    [
        ("jit(drafted_rounds)/while/body/verify/layer_0/dot_general", "verify"),
        ("jit(drafted_rounds)/while/body/verify/head/dot_general", "verify"),
        ("jit(drafted_rounds)/while/body/draft/head/packed_matmul/dot_general", "draft"),
        ("jit(drafted_rounds)/while/body/draft/selector/top_k", "selector"),
        ("jit(drafted_rounds)/while/body/accept/argmax", "sampling"),
        ("jit(drafted_rounds)/while/body/fold/scatter", "fold"),
        ("jit(decode_rounds)/while/body/layer_1/add", "verify"),
        ("jit(decode_rounds)/while/body/add", "other"),
    ],
)
def test_sections_by_scope(path, section):
    assert section_of(path) == section


def test_a_trace_finds_the_operations_of_a_program():
    def product(x):
        with jax.named_scope("verify"):
            return x @ x

    x = jnp.ones((256, 256))
    compiled = jax.jit(product).lower(x).compile()
    _, operations = traced_operations(lambda: compiled(x).block_until_ready(), "jit_product")
    names = sections_of(compiled)
    assert operations
    assert {names[one.name] for one in operations if one.name in names} == {"verify"}
    assert traced_operations(lambda: None, "jit_product")[1] == []


def test_a_faulty_record_accepts_what_it_should():
    text = [3 + index % 50 for index in range(2000)]
    record = faulty_record(5, text)[0]
    anchor, counts = 5, []
    while anchor + DRAFT_TOKENS < len(record):
        right = [record[anchor + 1 + k] == text[anchor + 1 + k - 5] for k in range(DRAFT_TOKENS)]
        accepted = right.index(False) if False in right else DRAFT_TOKENS
        counts.append(accepted)
        anchor += accepted + 1
    assert set(counts) == set(range(DRAFT_TOKENS + 1))
    assert sum(counts) / len(counts) + 1 == pytest.approx(4.5, abs=0.3)
