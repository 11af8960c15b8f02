"""Candidates and the walk over them: goldens of `docs/model.md` 9.4, ties, and its law."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.model.candidate_selector import best_candidates, edge_scores, walk
from tests.model import draft_oracle as oracle

LOGITS = 3 * oracle.fill((2, 8), 0.9)
GATE = oracle.fill((2, 3), 1.7)
BEFORE = oracle.fill((8, 3), 0.45)
AFTER = oracle.fill((8, 3), 0.77)


def walked(logits, gate, before, after, anchor, count, temperature, uniforms):
    """The package's walk for one row."""
    candidates = best_candidates(jnp.asarray(logits, jnp.float32)[None], None, count)
    arrays = (jnp.asarray(x, jnp.float32) for x in (before, after))
    edges = edge_scores(
        candidates, jnp.asarray(gate, jnp.float32)[None], jnp.array([anchor]), *arrays
    )
    draws = None if uniforms is None else jnp.asarray(uniforms, jnp.float32)[None]
    found = walk(candidates, edges, jnp.array([temperature], jnp.float32), draws)
    return candidates.ids[0], found.tokens[0], found.probabilities[0]


@pytest.mark.parametrize(
    ("temperature", "tokens", "law"),
    [
        (0.0, [1, 0], [[1, 0, 0], [1, 0, 0]]),
        (1.0, [1, 7], [[0.775773, 0.123631, 0.100597], [0.554132, 0.105592, 0.340276]]),
        (0.5, [1, 0], [None, [0.707517, 0.025691, 0.266792]]),
    ],
)
def test_goldens(temperature, tokens, law):
    ids, chosen, probabilities = walked(LOGITS, GATE, BEFORE, AFTER, 5, 3, temperature, [0.6, 0.6])
    np.testing.assert_array_equal(ids, [[1, 7, 0], [0, 7, 6]])
    np.testing.assert_array_equal(chosen, tokens)
    for found, expected in zip(probabilities, law, strict=True):
        if expected is not None:
            np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_every_walk_is_the_sequential_one(temperature):
    rng = np.random.RandomState(int(10 * temperature))
    for _ in range(20):
        vocabulary, rank, count, length = 30, 5, 6, 7
        logits, gate = rng.randn(length, vocabulary), rng.randn(length, rank)
        before, after = rng.randn(vocabulary, rank), rng.randn(vocabulary, rank)
        uniforms = rng.rand(length).astype(np.float32)
        arguments = (logits, gate, before, after, 3, count, temperature, uniforms)
        ids, _, law, tokens = oracle.walk(*arguments)
        found = walked(*arguments)
        np.testing.assert_array_equal(found[0], ids)
        np.testing.assert_array_equal(found[1], tokens)
        np.testing.assert_allclose(found[2], law, atol=1e-5)


def test_without_draws_all_rows_are_greedy():
    found = walked(LOGITS, GATE, BEFORE, AFTER, 5, 3, 0.0, None)
    np.testing.assert_array_equal(found[1], [1, 0])


def test_equal_scores_rank_by_lower_id_also_through_a_map():
    logits = jnp.array([[[0.0, 2.0, -0.0, 2.0, 1.0]]])
    np.testing.assert_array_equal(best_candidates(logits, None, 4).ids[0, 0], [1, 3, 4, 0])
    ids = jnp.array([2, 5, 7, 11, 13])
    np.testing.assert_array_equal(best_candidates(logits, ids, 5).ids[0, 0], [5, 11, 13, 2, 7])


def test_draws_have_the_law_that_is_kept():
    """Chi-square over the first column, 20,000 walks, threshold p = 1e-4 at 2 degrees: 18.4."""
    count = 20_000
    candidates = best_candidates(
        jnp.broadcast_to(jnp.asarray(LOGITS, jnp.float32), (count, 2, 8)), None, 3
    )
    gate = jnp.broadcast_to(jnp.asarray(GATE, jnp.float32), (count, 2, 3))
    tables = (jnp.asarray(x, jnp.float32) for x in (BEFORE, AFTER))
    edges = edge_scores(candidates, gate, jnp.full((count,), 5), *tables)
    uniforms = jax.random.uniform(jax.random.key(3), (count, 2))
    found = walk(candidates, edges, jnp.full((count,), 1.0), uniforms)
    observed = np.array([(np.asarray(found.tokens[:, 0]) == i).sum() for i in (1, 7, 0)])
    expected = np.asarray(found.probabilities[0, 0]) * count
    assert ((observed - expected) ** 2 / expected).sum() < 18.4
