"""Candidates and the walk over them: goldens of `docs/model.md` 9.4, ties, and its law."""

from __future__ import annotations

import functools

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


@functools.partial(jax.jit, static_argnames="count")
def selected(logits, gate, before, after, anchor, temperature, uniforms, ids, count):
    candidates = best_candidates(logits, ids, count)
    edges = edge_scores(candidates, gate, anchor, before, after)
    return candidates, edges, walk(candidates, edges, temperature, uniforms)


def walked(logits, gate, before, after, anchor, count, temperature, uniforms, ids=None):
    """The package's walk for one row: candidates, edges of all pairs, walk."""
    wide = [jnp.asarray(x, jnp.float32) for x in (logits, gate, before, after)]
    found = selected(
        wide[0][None],
        wide[1][None],
        *wide[2:],
        jnp.array([anchor]),
        jnp.array([temperature], jnp.float32),
        None if uniforms is None else jnp.asarray(uniforms, jnp.float32)[None],
        None if ids is None else jnp.asarray(ids, jnp.int32),
        count,
    )
    return jax.tree.map(lambda x: np.asarray(x[0]), found)


def edges_on_the_way(candidates, edges, chosen) -> np.ndarray:
    """The edges [K, C] that a walk looked at: those behind the token picked before."""
    rows = [edges[0, 0]]
    for column in range(1, len(edges)):
        (before,) = np.nonzero(candidates.ids[column - 1] == chosen.tokens[column - 1])
        rows.append(edges[column, before[0]])
    return np.array(rows)


SCORES = [[2.921543, 2.381004, 2.349981], [2.909669, 2.896973, 2.411353]]
EDGES = [[4.026912, 2.190351, 1.984170], [3.644585, 1.986767, 3.156939]]


@pytest.mark.parametrize(
    ("temperature", "tokens", "law"),
    [
        (0.0, [1, 0], [[1, 0, 0], [1, 0, 0]]),
        (1.0, [1, 7], [[0.775773, 0.123631, 0.100597], [0.554132, 0.105592, 0.340276]]),
        (0.5, [1, 0], [None, [0.707517, 0.025691, 0.266792]]),
    ],
)
def test_goldens(temperature, tokens, law):
    arguments = (LOGITS, GATE, BEFORE, AFTER, 5, 3, temperature, [0.6, 0.6])
    candidates, edges, chosen = walked(*arguments)
    np.testing.assert_array_equal(candidates.ids, [[1, 7, 0], [0, 7, 6]])
    np.testing.assert_allclose(candidates.scores, SCORES, atol=2e-6)
    np.testing.assert_allclose(edges_on_the_way(candidates, edges, chosen), EDGES, atol=2e-6)
    np.testing.assert_array_equal(chosen.tokens, tokens)
    ids, edge, q, picked = oracle.walk(*arguments)
    np.testing.assert_array_equal(ids, candidates.ids)
    np.testing.assert_allclose(edge, EDGES, atol=1e-6)
    np.testing.assert_array_equal(picked, tokens)
    for found, other, expected in zip(chosen.probabilities, q, law, strict=True):
        if expected is not None:
            np.testing.assert_allclose(found, expected, atol=2e-6)
            np.testing.assert_allclose(other, expected, atol=1e-6)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_every_walk_is_the_sequential_one(temperature, mapped):
    """Edges, laws and tokens; with a map, codebooks are read by token and not by row."""
    rng = np.random.RandomState(int(10 * temperature))
    for _ in range(20):
        rows, vocabulary, rank, count, length = 30, 50, 5, 6, 7
        ids = np.sort(rng.permutation(vocabulary)[:rows]) if mapped else None
        # Quarters: equal scores are common.
        logits, gate = np.round(4 * rng.randn(length, rows)) / 4, rng.randn(length, rank)
        before, after = rng.randn(vocabulary, rank), rng.randn(vocabulary, rank)
        uniforms = rng.rand(length).astype(np.float32)
        arguments = (logits, gate, before, after, 3, count, temperature, uniforms, ids)
        best, edge, law, tokens = oracle.walk(*arguments)
        candidates, edges, chosen = walked(*arguments)
        np.testing.assert_array_equal(candidates.ids, best)
        np.testing.assert_array_equal(chosen.tokens, tokens)
        way = edges_on_the_way(candidates, edges, chosen)
        np.testing.assert_allclose(way, edge, atol=1e-5)
        np.testing.assert_allclose(chosen.probabilities, law, atol=1e-5)


def test_draws_at_the_borders():
    """The first candidate with uniform < cumulative; equal edges have exact halves."""
    table = np.zeros((4, 1))
    arguments = np.array([[1.0, 1.0, -1e9, -1e9]]), np.zeros((1, 1)), table, table, 0, 2, 1.0
    for uniform, token in ((0.0, 0), (0.49, 0), (0.5, 1), (np.nextafter(np.float32(1), 0), 1)):
        _, _, chosen = walked(*arguments, [uniform])
        assert chosen.tokens[0] == token
        np.testing.assert_array_equal(chosen.probabilities[0], [0.5, 0.5])


def test_equal_edges_go_to_the_better_rank():
    """Edges tie although scores do not: rank order, not id order, decides."""
    before, after = np.ones((3, 1)), np.array([[1.0], [0.0], [0.0]])
    found = walked(np.array([[1.0, 2.0, 0.0]]), np.ones((1, 1)), before, after, 2, 2, 0.0, None)
    np.testing.assert_array_equal(found[0].ids[0], [1, 0])
    np.testing.assert_array_equal(found[1][0, 0], [2.0, 2.0])
    assert found[2].tokens[0] == 1


def test_without_draws_all_rows_are_greedy():
    _, _, chosen = walked(LOGITS, GATE, BEFORE, AFTER, 5, 3, 0.0, None)
    np.testing.assert_array_equal(chosen.tokens, [1, 0])


def test_equal_scores_rank_by_lower_id_also_through_a_map():
    logits = jnp.array([[[0.0, 2.0, -0.0, 2.0, 1.0]]])
    np.testing.assert_array_equal(best_candidates(logits, None, 4).ids[0, 0], [1, 3, 4, 0])
    ids = jnp.array([2, 5, 7, 11, 13])
    np.testing.assert_array_equal(best_candidates(logits, ids, 5).ids[0, 0], [5, 11, 13, 2, 7])


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_chains_have_the_law_of_the_oracle(temperature):
    """Chi-square over all 9 chains of two tokens, 20,000 walks; p = 1e-4 at 8 degrees: 31.83."""
    count, seed = 20_000, 3
    print("seed", seed)
    wide = [jnp.asarray(x, jnp.float32) for x in (LOGITS, GATE, BEFORE, AFTER)]
    _, _, chosen = selected(
        jnp.broadcast_to(wide[0], (count, 2, 8)),
        jnp.broadcast_to(wide[1], (count, 2, 3)),
        *wide[2:],
        jnp.full((count,), 5),
        jnp.full((count,), temperature),
        jax.random.uniform(jax.random.key(seed), (count, 2)),
        None,
        3,
    )
    statistic = 0.0
    tokens, borders = np.asarray(chosen.tokens), (0.0, 0.0)
    for first in range(3):
        # A draw in the middle of the candidate's share of [0, 1) picks it.
        _, _, law, _ = oracle.walk(LOGITS, GATE, BEFORE, AFTER, 5, 3, temperature, borders)
        share = np.cumsum(law[0])[first] - law[0, first] / 2
        ids, _, law, picked = oracle.walk(
            LOGITS, GATE, BEFORE, AFTER, 5, 3, temperature, (share, 0.0)
        )
        assert picked[0] == ids[0, first]
        for second in range(3):
            pair = (tokens == [ids[0, first], ids[1, second]]).all(axis=1)
            expected = law[0, first] * law[1, second] * count
            statistic += (pair.sum() - expected) ** 2 / expected
    assert statistic < 31.83
