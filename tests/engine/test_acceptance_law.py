"""The law of speculative decoding is the law of the target: chi-square tests of chained rounds.

The target is a Markov chain with penalties: logits depend on the last token only. So the law
of the first three tokens behind an anchor can be written down, and rounds of drafting, each
starting where the one before ended, must produce it.
"""

from __future__ import annotations

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import chdtrc

from ninfer_jax.engine import acceptance
from ninfer_jax.engine.acceptance import Proposal
from ninfer_jax.engine.random import Purpose, uniform
from ninfer_jax.engine.sampling import (
    CANDIDATES,
    SamplingRows,
    target_distribution,
)
from tests.engine.test_sampling import oracle as target_law
from tests.engine.test_sampling import rows

ROWS, DRAFTS, VOCABULARY = 25_000, 2, 24
ANCHOR, TOKENS = VOCABULARY, 3
LIMIT = 1e-4
"""A p-value below this rejects the law."""
SEED = 31
TARGET = (np.random.RandomState(SEED).randn(VOCABULARY + 1, VOCABULARY) * 1.5).astype("f4")
"""Logits behind each token, and behind the anchor in the last row."""

Draft = tuple[jax.Array, jax.Array]
"""Candidates behind each token and their q, [V + 1, C] each."""


def drafter(kind: str) -> Draft:
    """One guess, candidates with a wrong q, or only what the target thinks least likely."""
    random = np.random.RandomState(SEED + 1)
    order = np.argsort(-TARGET, axis=-1)
    count = {"guess": 1, "four": 4, "sixteen": 16, "unlikely": 4}[kind]
    if kind == "guess":
        ids = order[:, :1]
    elif kind == "unlikely":
        ids = order[:, -4:]
    else:
        ids = np.stack([row[random.permutation(20)[:count]] for row in order])
    claimed = random.dirichlet(np.ones(count), VOCABULARY + 1).astype("f4")
    return padded(ids, claimed)


def padded(ids: np.ndarray, claimed: np.ndarray) -> Draft:
    """With candidates that are never drawn, so that one program serves all drafters."""
    more = ((0, 0), (0, CANDIDATES - ids.shape[1]))
    ids, claimed = np.pad(ids, more), np.pad(claimed, more)
    return jnp.asarray(ids, jnp.int32), jnp.asarray(claimed, jnp.float32)


def build_chain(one_hot: bool, drafts: int = DRAFTS):
    """(draft, sampling, position, P per round [rounds, B]) -> first tokens, drafted, accepted."""
    target = jnp.asarray(TARGET)

    def one_round(draft: Draft, sampling: SamplingRows, carry, drafted):
        out, counts, last, position, filled = carry
        row, tokens, before, previous = jnp.arange(ROWS), [], [], last
        cumulative = jnp.cumsum(draft[1], axis=-1)
        for column in range(drafts):
            before.append(previous)
            luck = uniform(sampling.seed, position + column, Purpose.PROPOSAL)
            pick = jnp.argmax(luck[:, None] < cumulative[previous], axis=-1)
            previous = draft[0][previous, pick]
            tokens.append(previous)
        tokens, before = jnp.stack(tokens, axis=1), jnp.stack(before, axis=1)
        proposal = Proposal(tokens, *(() if one_hot else (draft[0][before], draft[1][before])))
        logits = target[jnp.concatenate([last[:, None], tokens], axis=1)]
        outcome = acceptance.accept(logits, counts, proposal, drafted, sampling, position, False)
        length = outcome.accepted + 1
        column = jnp.arange(drafts + 1)
        live = column < length[:, None]
        out = out.at[row[:, None], jnp.where(live, filled[:, None] + column, TOKENS)].set(
            outcome.tokens, mode="drop"
        )
        kept = jnp.where(live, outcome.tokens, VOCABULARY)
        counts = counts.at[row[:, None], kept].add(1, mode="drop")
        last = jnp.take_along_axis(outcome.tokens, outcome.accepted[:, None], axis=1)[:, 0]
        return (out, counts, last, position + length, filled + length), outcome.accepted

    def chain(draft: Draft, sampling: SamplingRows, position, drafted):
        carry = (
            jnp.full((ROWS, TOKENS), -1, jnp.int32),
            jnp.zeros((ROWS, VOCABULARY), jnp.int32),
            jnp.full((ROWS,), ANCHOR, jnp.int32),
            position,
            jnp.zeros_like(position),
        )
        step = functools.partial(one_round, draft, sampling)
        carry, accepted = jax.lax.scan(step, carry, drafted)
        return carry[0], accepted

    return jax.jit(chain)


correct_chain = functools.cache(build_chain)


def run(chain, draft: Draft, drafted=DRAFTS, seed: int = 5, **settings):
    """Three rounds of every row, each row with a seed and a frontier of its own."""
    random = np.random.RandomState(seed)
    seeds = tuple(
        jnp.asarray(random.randint(0, 2**32, ROWS, dtype=np.uint64), jnp.uint32) for _ in range(2)
    )
    sampling = rows(ROWS, **settings).replace(seed=seeds)
    position = jnp.asarray(random.randint(0, 200_000, ROWS), jnp.int32)
    lengths = np.broadcast_to(drafted, (TOKENS, ROWS))
    if drafted is None:
        lengths = random.randint(0, DRAFTS + 1, (TOKENS, ROWS))
    tokens, accepted = chain(draft, sampling, position, jnp.asarray(lengths, jnp.int32))
    return np.asarray(tokens), np.asarray(accepted), lengths


def law(settings: dict) -> tuple[np.ndarray, np.ndarray]:
    """Joint laws of outputs (1, 2) and (2, 3), by plain decoding in float64."""
    named = {"temperature": 1.0, "top_k": 20, "top_p": 1.0, "min_p": 0.0} | settings
    presence, frequency = (np.float32(named.pop(n, 0)) for n in ("presence", "frequency"))

    def behind(last: int, *emitted: int) -> np.ndarray:
        counts = np.bincount(emitted, minlength=VOCABULARY)
        adjusted = TARGET[last] - presence * (counts > 0) - frequency * counts.astype("f4")
        dense = np.zeros(VOCABULARY)
        for token, probability in target_law(adjusted, **named).items():
            dense[token] = probability
        return dense

    early, late = np.zeros((2, VOCABULARY, VOCABULARY))
    for one, first in enumerate(behind(ANCHOR)):
        early[one] = first * behind(one, one) if first else 0
        for two in np.flatnonzero(early[one]):
            late[two] += early[one, two] * behind(two, one, two)
    return early, late


def p_value(tokens: np.ndarray, expected: np.ndarray) -> float:
    """Chi-square of ids [rows, axes] against a law; cells expecting under 8 are one cell."""
    observed = np.zeros(expected.shape)
    np.add.at(observed, tuple(tokens.T), 1)
    observed, expected = observed.ravel(), expected.ravel() * len(tokens)
    if observed[expected == 0].any():
        return 0.0
    small = expected < 8
    observed = np.append(observed[~small], observed[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    observed, expected = observed[expected >= 1], expected[expected >= 1]
    return float(chdtrc(len(observed) - 1, ((observed - expected) ** 2 / expected).sum()))


def p_values(tokens: np.ndarray, settings: dict) -> dict[str, float]:
    """Of the first output, of it with the second, and of the second with the third."""
    early, late = law(settings)
    values = {
        "first": p_value(tokens[:, :1], early.sum(axis=1)),
        "second": p_value(tokens[:, :2], early),
        "third": p_value(tokens[:, 1:], late),
    }
    print(f"seed {SEED}: {values}")
    return values


FILTERS = {
    "top-k": {"temperature": 1.7, "top_k": 5},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 0.6, "min_p": 0.1},
    "penalties": {"temperature": 1.0, "presence": 0.9, "frequency": 0.6, "top_p": 0.95},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
}


@pytest.mark.parametrize(
    ("kind", "filters"),
    [
        *(("guess", name) for name in ("top-k", "min-p", "penalties", "hot")),
        *(("four", name) for name in ("top-k", "penalties", "cold")),
        *(("sixteen", name) for name in ("top-p", "min-p", "penalties", "hot")),
        *(("unlikely", name) for name in ("top-k", "hot")),
    ],
)
def test_the_law_of_the_outputs_is_the_targets(kind, filters):
    tokens, accepted, _ = run(correct_chain(kind == "guess"), drafter(kind), **FILTERS[filters])
    print(f"accepted {accepted.mean():.3f} of {DRAFTS}")
    assert min(p_values(tokens, FILTERS[filters]).values()) > LIMIT


@pytest.mark.parametrize("kind", ["guess", "sixteen"])
def test_the_law_holds_with_any_number_of_drafts(kind):
    """P is 0, 1 or 2, another one every round."""
    tokens, _, _ = run(correct_chain(kind == "guess"), drafter(kind), None, **FILTERS["penalties"])
    assert min(p_values(tokens, FILTERS["penalties"]).values()) > LIMIT


def test_the_target_as_its_own_drafter_is_always_accepted():
    for settings in (FILTERS["top-p"], FILTERS["cold"]):
        itself = target_distribution(jnp.asarray(TARGET), rows(VOCABULARY + 1, **settings))
        draft = padded(itself.ids, itself.probabilities)
        tokens, accepted, drafted = run(correct_chain(False), draft, **settings)
        # Another program may round p otherwise: a number next to 1 can then reject.
        assert (accepted != drafted).sum() <= 2
        assert min(p_values(tokens, settings).values()) > LIMIT


def test_unlikely_drafts_are_hardly_ever_accepted():
    _, accepted, _ = run(correct_chain(False), drafter("unlikely"), **FILTERS["cold"])
    assert accepted.mean() < 0.01
    _, accepted, _ = run(correct_chain(True), drafter("unlikely"), **FILTERS["top-k"])
    assert not accepted.any(), "outside the support"


FAULTS = {
    "correction at the next draft": (Purpose.CORRECTION, Purpose.PROPOSAL, 0, 2, "second"),
    "correction at the rejected draft": (Purpose.CORRECTION, Purpose.PROPOSAL, -1, 2, "first"),
    "correction and acceptance": (Purpose.CORRECTION, Purpose.ACCEPT, 0, 2, "first"),
    "acceptance at the judged draft": (Purpose.ACCEPT, Purpose.PROPOSAL, -1, 2, "first"),
    "bonus at the next draft": (Purpose.BONUS, Purpose.PROPOSAL, 0, 1, "third"),
}


@functools.cache
def faulty_chain():
    """(fault, *arguments of a chain): as `build_chain`, drawing as fault number `fault` says."""

    def faulty(fault, draft, sampling, position, drafted):
        def shared(seed, position, asked: Purpose):
            value = uniform(seed, position, asked)
            for number, (purpose, wrong, offset, *_) in enumerate(FAULTS.values()):
                if asked is purpose:
                    other = uniform(seed, position + offset, wrong)
                    value = jnp.where(fault == number, other, value)
            return value

        with mock.patch.object(acceptance, "uniform", shared):
            return build_chain(False).__wrapped__(draft, sampling, position, drafted)

    return jax.jit(faulty)


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_streams_that_are_shared_would_be_noticed(fault):
    """The guard is real: the same tests reject a draw made with another draw's number.

    A correction behind draft i is drawn at F + i + 1, where the next round draws its first
    draft. With one stream for both, that round's draft would be known from its anchor.
    """
    number = -1 if fault is None else list(FAULTS).index(fault)
    *_, drafted, output = (DRAFTS, None) if fault is None else FAULTS[fault]
    chain = functools.partial(faulty_chain(), number)
    tokens, _, _ = run(chain, drafter("sixteen"), drafted, **FILTERS["hot"])
    values = p_values(tokens, FILTERS["hot"])
    if fault is None:
        assert min(values.values()) > LIMIT, "the machinery itself bends nothing"
    else:
        assert values[output] < 1e-9, "the output that the fault bends"
