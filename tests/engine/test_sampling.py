"""From logits to tokens: published examples, a float64 oracle, ties, NaN, and the law."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.engine.random import Purpose, uniform
from ninfer_jax.engine.sampling import (
    CANDIDATES,
    NOT_FINITE,
    Distribution,
    SamplingRows,
    draw,
    greedy_token,
    penalize,
    sampled_token,
    target_distribution,
)

LOGITS = (2.0, 1.5, 1.5, 0.3, -1.0, -2.0)
COUNTS = (1, 0, 2, 0, 0, 0)


def rows(batch: int = 1, **values) -> SamplingRows:
    """Parameters of `batch` equal rows, or of given ones."""
    defaults = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "presence": 0.0, "frequency": 0.0}
    floats = {
        name: jnp.broadcast_to(jnp.asarray(values.get(name, default), jnp.float32), (batch,))
        for name, default in defaults.items()
    }
    top_k = jnp.broadcast_to(jnp.asarray(values.get("top_k", 20), jnp.int32), (batch,))
    zero = jnp.zeros((batch,), jnp.uint32)
    return SamplingRows(top_k=top_k, seed=(zero, zero), **floats)


def kept(distribution: Distribution) -> dict[int, float]:
    """id -> probability of the first row, in the order of the candidates."""
    pairs = zip(distribution.ids[0].tolist(), distribution.probabilities[0].tolist(), strict=True)
    return {token: probability for token, probability in pairs if probability > 0}


@pytest.mark.parametrize(
    ("counts", "settings", "expected"),
    [
        pytest.param(
            (0,) * 6,
            {"top_p": 0.95},
            {0: 0.41740672, 1: 0.25316997, 2: 0.25316997, 3: 0.07625333},
            id="no penalty",
        ),
        pytest.param(
            COUNTS,
            {"presence": 1.5, "frequency": 0.25, "temperature": 0.7, "top_k": 4, "top_p": 0.8},
            {1: 0.84739134, 3: 0.15260866},
            id="penalties, top-k 4",
        ),
        pytest.param(
            COUNTS,
            {"presence": 1.5, "frequency": 0.25, "top_p": 0.95},
            {1: 0.55398001, 3: 0.16685557, 0: 0.15871793, 2: 0.07497304, 4: 0.04547345},
            id="penalties",
        ),
        pytest.param(
            COUNTS,
            {"presence": 1.5, "frequency": 0.25, "top_p": 0.95, "min_p": 0.1},
            {1: 0.5803715, 3: 0.17480454, 0: 0.16627922, 2: 0.07854474},
            id="penalties, min-p",
        ),
    ],
)
def test_published_examples(counts, settings, expected):
    parameters = rows(**settings)
    adjusted = penalize(jnp.asarray([LOGITS]), jnp.asarray([counts], jnp.int32), parameters)
    result = kept(target_distribution(adjusted, parameters))
    assert list(result) == list(expected), "descending order, lower id first on ties"
    for token, probability in expected.items():
        assert result[token] == pytest.approx(probability, abs=2e-7)


def test_published_adjusted_logits():
    parameters = rows(presence=1.5, frequency=0.25)
    adjusted = penalize(jnp.asarray([LOGITS]), jnp.asarray([COUNTS], jnp.int32), parameters)
    np.testing.assert_allclose(adjusted[0], [0.25, 1.5, -0.5, 0.3, -1, -2], atol=1e-7)


def oracle(logits, temperature, top_k, top_p, min_p) -> dict[int, float]:
    """The definition, walked step by step in float64."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: top_k if 1 <= top_k <= 19 else 20]
    best = logits[order[0]]
    weights = [float(np.exp((float(logits[token]) - float(best)) / temperature)) for token in order]
    total, chosen, mass = sum(weights), [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if min_p > 0 and weight < min_p * weights[0]:
            break
        chosen.append((token, weight))
        mass += weight
        if top_p < 1 and mass >= top_p * total:
            break
    return {token: weight / mass for token, weight in chosen}


def test_law_of_random_parameters():
    """200 rows at once against the walk in float64."""
    random = np.random.RandomState(11)
    batch, vocabulary = 200, 97
    logits = (random.randn(batch, vocabulary) * random.uniform(0.2, 5, (batch, 1))).astype("f4")
    logits[::7] = np.round(logits[::7]) + 0.0  # many ties, and no -0.0, which ranks below 0.0
    temperature = random.choice([0.3, 0.7, 1.0, 2.0], batch)
    top_k = random.choice([1, 2, 5, 19, 20], batch)
    top_p = random.choice([0.05, 0.5, 0.8, 0.95, 1.0], batch)
    min_p = random.choice([0.0, 0.01, 0.2, 1.0], batch)
    parameters = rows(batch, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    result = jax.jit(target_distribution)(jnp.asarray(logits), parameters)
    ids, probabilities = np.asarray(result.ids), np.asarray(result.probabilities)
    assert ids.shape == (batch, CANDIDATES)
    for row in range(batch):
        expected = oracle(
            logits[row], temperature[row], int(top_k[row]), float(top_p[row]), float(min_p[row])
        )
        count = int((probabilities[row] > 0).sum())
        assert ids[row, :count].tolist() == list(expected), f"row {row}"
        np.testing.assert_allclose(
            probabilities[row, :count], list(expected.values()), rtol=2e-5, atol=1e-7
        )
        assert probabilities[row].sum() == pytest.approx(1, abs=1e-5)


def test_a_vocabulary_smaller_than_the_candidates():
    result = kept(target_distribution(jnp.asarray([[0.0, 1.0, 0.5]]), rows()))
    assert list(result) == [1, 2, 0]


def test_at_least_one_candidate_stays():
    for settings in ({"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1}):
        assert kept(target_distribution(jnp.asarray([LOGITS]), rows(**settings))) == {0: 1.0}


def test_temperature_zero_is_one_hot():
    result = target_distribution(jnp.asarray([[1.0, 3.0, 3.0, 2.0]]), rows(temperature=0.0))
    assert kept(result) == {1: 1.0}


def test_inverse_cdf():
    """First candidate with u < cumulative sum; the last kept one where rounding leaves none."""
    ids = jnp.asarray([[5, 3, 9, 1]] * 6)
    probabilities = jnp.asarray([[0.5, 0.25, 0.2499, 0.0]] * 6)
    uniforms = jnp.asarray([0.0, 0.4999, 0.5, 0.74, 0.75, 0.99999])
    chosen = draw(Distribution(ids, probabilities), uniforms)
    assert chosen.tolist() == [5, 5, 3, 3, 9, 9]


def test_greedy_takes_the_lowest_id_on_ties():
    adjusted = jnp.asarray([[1.0, 7.0, 7.0], [0.0, -0.0, -1.0], [-5.0, -5.0, -5.0]])
    assert greedy_token(adjusted).tolist() == [1, 0, 0]


def test_sampling_with_temperature_zero_is_greedy():
    """Mixed batches run the sampling program; its greedy rows must not differ."""
    random = np.random.RandomState(2)
    adjusted = jnp.asarray(np.round(random.randn(64, 50) * 2) / 2 + 0.0, jnp.float32)
    parameters = rows(64, temperature=0.0, top_p=0.5)
    uniforms = jnp.asarray(random.rand(64), jnp.float32)
    tokens = sampled_token(adjusted, parameters, uniforms)
    np.testing.assert_array_equal(tokens, greedy_token(adjusted))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_give_the_sentinel(bad):
    adjusted = np.random.RandomState(3).randn(3, 30).astype(np.float32)
    adjusted[1, 17] = bad
    clean = np.random.RandomState(3).randn(3, 30).astype(np.float32)
    uniforms = jnp.asarray([0.1, 0.5, 0.9])
    for choose in (
        greedy_token,
        lambda x: sampled_token(x, rows(3), uniforms),
        lambda x: sampled_token(x, rows(3, temperature=0.0), uniforms),
    ):
        tokens = choose(jnp.asarray(adjusted)).tolist()
        expected = choose(jnp.asarray(clean)).tolist()
        assert tokens == [expected[0], NOT_FINITE, expected[2]]


@pytest.mark.parametrize("shape", [(3, 30), (400, 37), (4, 1024), (2, 50_001)])
def test_nan_is_seen_in_rows_of_any_size(shape):
    """A reduction over many numbers is split into vectors and threads, and may lose NaN."""
    clean = np.random.RandomState(5).randn(*shape).astype(np.float32)
    for place in (0, 4, shape[1] // 2, shape[1] - 1):
        adjusted = clean.copy()
        adjusted[1:, place] = np.nan
        tokens = np.asarray(jax.jit(greedy_token)(jnp.asarray(adjusted)))
        assert tokens[0] == clean[0].argmax() and (tokens[1:] == NOT_FINITE).all()


def test_all_minus_infinity_gives_the_sentinel():
    assert greedy_token(jnp.full((1, 8), -jnp.inf)).tolist() == [NOT_FINITE]
    assert sampled_token(jnp.full((1, 8), -jnp.inf), rows(), jnp.zeros(1)).tolist() == [NOT_FINITE]


def test_some_minus_infinity_is_a_mask():
    adjusted = jnp.asarray([[-jnp.inf, 1.0, -jnp.inf, 0.0]])
    assert greedy_token(adjusted).tolist() == [1]
    tokens = {int(sampled_token(adjusted, rows(), jnp.asarray([u]))[0]) for u in (0.0, 0.5, 0.999)}
    assert tokens == {1, 3}


def test_the_law_of_the_draw():
    """100,000 draws with the engine's own uniforms: chi-square at p = 1e-4, seed fixed."""
    count = 100_000
    parameters = rows(temperature=0.8, top_p=0.9, top_k=10)
    logits = jnp.asarray(np.random.RandomState(4).randn(1, 40) * 1.5, jnp.float32)
    distribution = target_distribution(logits, parameters)
    expected = kept(distribution)
    seed = tuple(jnp.full((count,), half, jnp.uint32) for half in (12, 345))
    uniforms = uniform(seed, jnp.arange(count), Purpose.DECODE)
    many = Distribution(
        *(
            jnp.broadcast_to(x, (count, x.shape[1]))
            for x in (distribution.ids, distribution.probabilities)
        )
    )
    counts = np.bincount(np.asarray(draw(many, uniforms)), minlength=40)
    assert counts.sum() == sum(counts[token] for token in expected)
    statistic = sum(
        (counts[token] - count * probability) ** 2 / (count * probability)
        for token, probability in expected.items()
    )
    # Wilson and Hilferty: the upper 1e-4 quantile of chi-square with n degrees of freedom.
    degrees = len(expected) - 1
    limit = degrees * (1 - 2 / (9 * degrees) + 3.719 * np.sqrt(2 / (9 * degrees))) ** 3
    print(f"chi-square {statistic:.2f}, limit {limit:.2f}, {degrees} degrees of freedom")
    assert statistic < limit


def test_the_two_zeros_are_one_number():
    """An exact tie at zero goes to the lower id, whatever the sign of the zeros."""
    adjusted = jnp.array([[-1.0, -0.0, 0.0, -2.0]])
    rows = SamplingRows(
        temperature=jnp.ones(1),
        top_p=jnp.ones(1),
        min_p=jnp.zeros(1),
        presence=jnp.zeros(1),
        frequency=jnp.zeros(1),
        top_k=jnp.array([20]),
        seed=(jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.uint32)),
    )
    assert target_distribution(adjusted, rows).ids[0, :2].tolist() == [1, 2]
