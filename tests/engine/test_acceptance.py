"""Accepting drafts: a float64 oracle, greedy rows, what must not matter, failures."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.engine.acceptance import Acceptance, Proposal, accept
from ninfer_jax.engine.random import Purpose, uniform
from ninfer_jax.engine.sampling import (
    NOT_FINITE,
    SamplingRows,
    greedy_token,
    penalize,
    sampled_token,
)
from tests.engine.test_random import oracle as uniform_oracle
from tests.engine.test_sampling import oracle as target_law
from tests.engine.test_sampling import rows

BATCH, DRAFTS, VOCABULARY, CANDIDATES = 400, 5, 37, 6
RANDOM_SEED = 20_261
KINDS = ("one-hot", "candidates")


@functools.partial(jax.jit, static_argnames="greedy")
def judge(logits, counts, proposal, drafted, sampling, position, greedy=False) -> Acceptance:
    return accept(logits, counts, proposal, drafted, sampling, position, greedy)


def random_round(kind: str, seed: int = RANDOM_SEED, **settings) -> dict:
    """Inputs of `judge`: every P, filters, penalties, ties, greedy rows, plausible drafts."""
    print(f"seed {seed}")
    random = np.random.RandomState(seed)
    shape = (BATCH, DRAFTS + 1, VOCABULARY)
    logits = (random.randn(*shape) * random.uniform(0.5, 4, (BATCH, 1, 1))).astype("f4")
    logits[::5] = np.round(logits[::5] * 2) / 2
    # Half of the candidates are what the target likes.
    ids = np.argsort(random.rand(BATCH, DRAFTS, VOCABULARY), axis=-1)[..., :CANDIDATES]
    liked = np.argsort(-logits[:, :DRAFTS], axis=-1)[..., : CANDIDATES // 2]
    for row, column in np.ndindex(BATCH, DRAFTS):
        others = [token for token in ids[row, column] if token not in liked[row, column]]
        ids[row, column] = [*liked[row, column], *others][:CANDIDATES]
    claimed = random.dirichlet(np.full(CANDIDATES, 0.7), (BATCH, DRAFTS))
    sure = random.choice([0.0, 5.0], (BATCH, 1))
    claimed[..., 0] += sure
    claimed = (claimed / (1 + sure[..., None])).astype("f4")
    pick = (random.rand(BATCH, DRAFTS, 1) < np.cumsum(claimed, -1)).argmax(-1)
    tokens = np.take_along_axis(ids, pick[..., None], -1)[..., 0].astype("i4")
    parameters = {
        "temperature": random.choice([0.0, 0.6, 1.0, 1.7], BATCH),
        "top_k": random.choice([1, 3, 19, 20], BATCH, p=[0.1, 0.2, 0.2, 0.5]),
        "top_p": random.choice([0.37, 0.83, 1.0], BATCH),
        "min_p": random.choice([0.0, 0.07, 0.21], BATCH),
        "presence": random.choice([0.0, 0.5, 1.5], BATCH),
        "frequency": random.choice([0.0, 0.25, 0.75], BATCH),
    } | settings
    high, low = (random.randint(0, 2**32, BATCH, dtype=np.uint64) for _ in range(2))
    seeds = tuple(jnp.asarray(half, jnp.uint32) for half in (high, low))
    counts = random.poisson(0.4, (BATCH, VOCABULARY)).astype("i4")
    return {
        "logits": jnp.asarray(logits),
        "counts": jnp.asarray(counts),
        "proposal": Proposal(jnp.asarray(tokens))
        if kind == "one-hot"
        else Proposal(jnp.asarray(tokens), jnp.asarray(ids, jnp.int32), jnp.asarray(claimed)),
        "drafted": jnp.asarray(random.randint(0, DRAFTS + 1, BATCH), jnp.int32),
        "sampling": rows(BATCH, **parameters).replace(seed=seeds),
        "position": jnp.asarray(random.randint(0, 262_144, BATCH), jnp.int32),
    }


def parameters_of(sampling: SamplingRows, row: int) -> dict:
    names = ("temperature", "top_k", "top_p", "min_p", "presence", "frequency")
    return {name: np.asarray(getattr(sampling, name))[row] for name in names}


def definition(inputs: dict, row: int) -> tuple[list[int], int, float]:
    """One row's round, walked in float64: outputs, A, distance to the closest decision."""
    sampling, position = inputs["sampling"], int(inputs["position"][row])
    parameters, drafted = parameters_of(sampling, row), int(inputs["drafted"][row])
    seed = int(sampling.seed[0][row]) << 32 | int(sampling.seed[1][row])
    counts, proposal = np.array(inputs["counts"][row]), inputs["proposal"]
    tokens = np.asarray(proposal.tokens[row])
    greedy, out, margin = parameters["temperature"] == 0, [], 1.0

    def luck(offset: int, purpose: Purpose) -> float:
        return uniform_oracle(seed, position + offset, int(purpose))

    def drawn(law: dict[int, float], chance: float) -> int:
        nonlocal margin
        cumulative = np.cumsum(list(law.values())) / sum(law.values())
        if np.count_nonzero(list(law.values())) > 1:
            margin = min(margin, np.abs(cumulative - chance).min())
        return list(law)[int(np.argmax(chance < cumulative))]

    for column in range(drafted + 1):
        adjusted = np.asarray(inputs["logits"][row, column])
        adjusted = adjusted - parameters["presence"] * (counts > 0)
        adjusted = adjusted - parameters["frequency"] * counts.astype("f4")
        if not np.isfinite(adjusted.max()):
            return [NOT_FINITE] + [0] * len(tokens), 0, 1.0
        if greedy:
            law = {int(adjusted.argmax()): 1.0}
        else:
            names = ("temperature", "top_k", "top_p", "min_p")
            law = target_law(adjusted, *(parameters[name] for name in names))
        if column == drafted:
            where = (drafted + 1, Purpose.BONUS) if drafted else (0, Purpose.DECODE)
            out.append(drawn(law, luck(*where)))
            break
        draft = int(tokens[column])
        claimed = {draft: 1.0}
        if proposal.ids is not None and not greedy:
            pair = (proposal.ids[row, column], proposal.probabilities[row, column])
            claimed = dict(zip(*(np.asarray(x).tolist() for x in pair), strict=True))
        scaled, chance = luck(column + 1, Purpose.ACCEPT) * claimed[draft], law.get(draft, 0.0)
        if 0 < chance < 1:
            margin = min(margin, abs(scaled - chance))
        if scaled < chance:
            out.append(draft)
            counts[draft] += 1
            continue
        residual = {token: max(p - claimed.get(token, 0.0), 0.0) for token, p in law.items()}
        kept = residual if sum(residual.values()) > 0 else law
        out.append(drawn(kept, luck(column + 1, Purpose.CORRECTION)))
        break
    return out + [0] * (len(tokens) + 1 - len(out)), len(out) - 1, margin


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_follow_the_definition(kind):
    inputs = random_round(kind)
    outcome = judge(**inputs)
    tokens, accepted = np.asarray(outcome.tokens), np.asarray(outcome.accepted)
    seen, close = set(), 0
    for row in range(BATCH):
        expected, count, margin = definition(inputs, row)
        # Closer than the rounding of f32, either answer is right.
        close += margin < 3e-6
        if margin >= 3e-6:
            assert (tokens[row].tolist(), accepted[row]) == (expected, count), f"row {row}"
            seen.add((int(inputs["drafted"][row]), count))
    assert close <= 4
    assert len(seen) >= 20, "nearly every pair of P and A occurs"


@pytest.mark.parametrize("kind", KINDS)
def test_failing_columns_follow_the_definition(kind):
    """NaN and infinities in random columns: A and the failure by the definition."""
    inputs = random_round(kind, RANDOM_SEED + 1)
    random = np.random.RandomState(7)
    logits = np.array(inputs["logits"])
    hit = random.rand(BATCH, DRAFTS + 1) < 0.3
    bad = random.choice([np.nan, np.inf], (BATCH, DRAFTS + 1))
    logits[..., 11] = np.where(hit, bad, logits[..., 11])
    logits[random.rand(BATCH, DRAFTS + 1) < 0.05] = -np.inf
    inputs["logits"] = jnp.asarray(logits)
    outcome = judge(**inputs)
    failed = 0
    for row in range(BATCH):
        expected, count, margin = definition(inputs, row)
        failed += expected[0] == NOT_FINITE
        if margin >= 3e-6:
            found = (outcome.tokens[row].tolist(), int(outcome.accepted[row]))
            assert found == (expected, count), f"row {row}"
    assert 50 < failed < 300


def plain_greedy(inputs: dict) -> np.ndarray:
    """Greedy decoding step by step; where outputs agree with the drafts, logits do too."""
    counts, steps = inputs["counts"], []
    for column in range(DRAFTS + 1):
        adjusted = penalize(inputs["logits"][:, column], counts, inputs["sampling"])
        steps.append(greedy_token(adjusted))
        counts = counts + jax.nn.one_hot(steps[-1], VOCABULARY, dtype=jnp.int32)
    return np.stack(steps, axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_rows(kind):
    """Same outputs as plain decoding, in the greedy program and in a mixed batch."""
    mixed = random_round(kind)
    greedy = np.asarray(mixed["sampling"].temperature) == 0
    cold = mixed["sampling"].replace(temperature=jnp.zeros(BATCH))
    outcome = judge(**mixed | {"sampling": cold}, greedy=True)
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x[greedy], y[greedy]), outcome, judge(**mixed)
    )
    steps = plain_greedy(mixed)
    for row in range(BATCH):
        count = int(outcome.accepted[row]) + 1
        assert outcome.tokens[row, :count].tolist() == steps[row, :count].tolist()
        assert not outcome.tokens[row, count:].any()
        if count <= int(mixed["drafted"][row]):
            assert mixed["proposal"].tokens[row, count - 1] != steps[row, count - 1], "longest"


def primitives(jaxpr) -> tuple[set[str], set]:
    """Names of the primitives and types of the values, inner programs included."""
    names, types = set(), set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        types |= {variable.aval.dtype for variable in equation.outvars}
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                deeper = primitives(inner)
                names, types = names | deeper[0], types | deeper[1]
    return names, types


@pytest.mark.parametrize("greedy", [False, True])
def test_the_greedy_program_ranks_and_draws_nothing(greedy):
    inputs = random_round("one-hot")
    program = jax.make_jaxpr(functools.partial(accept, greedy=greedy))(**inputs)
    names, types = primitives(program.jaxpr)
    # Random numbers are the only arithmetic on unsigned integers.
    assert ("top_k" in names) == (jnp.dtype("uint32") in types) == (not greedy)
    assert not names & {"sort", "approx_top_k", "random_bits", "threefry2x32"}
    if greedy:
        lowered = judge.lower(**inputs, greedy=True).as_text()
        assert "top_k" not in lowered and "ui32" not in lowered.split("{", 2)[2]


@pytest.mark.parametrize("kind", KINDS)
def test_without_drafts_it_is_a_decode_step(kind):
    inputs = random_round(kind) | {"drafted": jnp.zeros(BATCH, jnp.int32)}
    inputs["logits"] = inputs["logits"].at[::9, 0, 4].set(jnp.nan)
    sampling = inputs["sampling"]
    adjusted = penalize(inputs["logits"][:, 0], inputs["counts"], sampling)
    luck = uniform(sampling.seed, inputs["position"], Purpose.DECODE)
    plain = np.asarray(jax.jit(sampled_token)(adjusted, sampling, luck))
    outcome = judge(**inputs)
    assert (plain[::9] == NOT_FINITE).all() and (plain >= 0).any()
    np.testing.assert_array_equal(outcome.tokens[:, 0], plain)
    assert not outcome.tokens[:, 1:].any() and not outcome.accepted.any()


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_needed_never_matters(kind, greedy):
    """Drafts behind P with their q, and logits behind column A, may be anything."""
    inputs = random_round(kind, **({"temperature": 0.0} if greedy else {}))
    clean = judge(**inputs, greedy=greedy)
    random = np.random.RandomState(8)
    column = np.arange(DRAFTS)
    idle = column >= np.asarray(inputs["drafted"])[:, None]
    proposal = inputs["proposal"]
    tokens = jnp.where(idle, random.randint(-(2**31), 2**31, idle.shape), proposal.tokens)
    poisoned = proposal.replace(tokens=tokens.astype(jnp.int32))
    if kind == "candidates":
        poisoned = poisoned.replace(
            ids=jnp.where(idle[..., None], tokens[..., None], proposal.ids).astype(jnp.int32),
            probabilities=jnp.where(idle[..., None], jnp.nan, proposal.probabilities),
        )
    behind = np.arange(DRAFTS + 1) > np.asarray(clean.accepted)[:, None]
    logits = jnp.where(behind[..., None], jnp.nan, inputs["logits"])
    found = judge(**inputs | {"logits": logits, "proposal": poisoned}, greedy=greedy)
    jax.tree.map(np.testing.assert_array_equal, found, clean)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_see_each_other(kind):
    """The same row at another place of another batch."""
    inputs, others = random_round(kind), random_round(kind, RANDOM_SEED + 2)
    alone = judge(**inputs)
    order = np.random.RandomState(9).permutation(BATCH)
    kept = np.arange(BATCH) % 3 == 0

    def mix(mine, other):
        shape = (BATCH,) + (1,) * (mine.ndim - 1)
        return jnp.where(kept.reshape(shape), mine[order], other)

    together = judge(**jax.tree.map(mix, inputs, others))
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x[kept], y[order][kept]), together, alone
    )


def repeated_round(logits, tokens, claimed=None, counts=(), **settings) -> Acceptance:
    """One round at every position, P = len(tokens); `claimed` is q as a list of pairs."""
    defaults = {"temperature": 1.0, "top_k": 20, "top_p": 1.0, "min_p": 0.0}
    defaults |= {"presence": 0.0, "frequency": 0.0}
    inputs = random_round("one-hot", **(defaults | settings))
    wide = np.full((DRAFTS + 1, VOCABULARY), -90.0, "f4")
    wide[: len(logits), : len(logits[0])] = logits
    drafts = np.pad(tokens, (0, DRAFTS - len(tokens)))
    proposal = [drafts.astype("i4")]
    if claimed is not None:
        pairs = [*claimed, *((30 + i, 0.0) for i in range(CANDIDATES - len(claimed)))]
        proposal += [np.array([column] * DRAFTS) for column in zip(*pairs, strict=True)]
        proposal[2] = proposal[2].astype("f4")
    everywhere = [np.broadcast_to(x, (BATCH, *x.shape)) for x in (wide, *proposal)]
    many = np.zeros((BATCH, VOCABULARY), "i4")
    many[:, : len(counts)] = counts
    inputs |= {
        "logits": everywhere[0],
        "proposal": Proposal(*everywhere[1:]),
        "counts": many,
        "drafted": np.full(BATCH, len(tokens), "i4"),
    }
    return judge(**jax.tree.map(jnp.asarray, inputs))


@pytest.mark.parametrize(
    ("penalty", "committed", "expected"),
    [
        pytest.param({"frequency": 0.3}, 0, [3, 3, 3, 3], id="three are too few"),
        pytest.param({"frequency": 0.4}, 0, [3, 3, 3, 5], id="the bonus sees three"),
        pytest.param({"frequency": 0.6}, 0, [3, 3, 5, 0], id="column 2 sees two"),
        pytest.param({"frequency": 0.6}, 1, [3, 5, 0, 0], id="on top of a committed one"),
        pytest.param({"presence": 1.5}, 0, [3, 5, 0, 0], id="presence"),
        pytest.param({"presence": 0.9}, 0, [3, 3, 3, 3], id="presence counts once"),
    ],
)
@pytest.mark.parametrize("sampled", [{"temperature": 0.0}, {"top_k": 1}])
def test_a_repeated_draft_is_penalised(penalty, committed, expected, sampled):
    """Token 3 leads token 5 by 1.0 in every column; all drafts are 3."""
    logits, counts = [[0, 0, 0, 4.0, 0, 3.0]] * 4, (0, 0, 0, committed)
    outcome = repeated_round(logits, [3] * 3, counts=counts, **penalty, **sampled)
    assert np.unique(outcome.tokens, axis=0).tolist() == [[*expected, 0, 0]]
    assert np.unique(outcome.accepted).tolist() == [np.count_nonzero(expected) - 1]


@pytest.mark.parametrize(
    "claimed",
    [
        pytest.param([(0, 0.6), (1, 0.6), (2, 0.5)], id="q is larger"),
        pytest.param([(0, 0.5), (1, 0.5)], id="q = p, and 0 = 0 for the draft"),
    ],
)
def test_where_nothing_is_left_p_itself_is_drawn_from(claimed):
    """q covers p everywhere, yet the draft lies outside the support: rejected, strictly."""
    outcome = repeated_round([[5.0, 5.0, 0, 0]] * 2, [2], claimed, top_k=2)
    assert not outcome.accepted.any()
    assert 0.4 < np.asarray(outcome.tokens[:, 0] == 0).mean() < 0.6
    assert np.unique(outcome.tokens[:, 0]).tolist() == [0, 1]


def test_a_support_of_one_token_corrects_to_it():
    outcome = repeated_round([[5.0, 4.0, 0, 0]] * 2, [1], top_k=1)
    assert not outcome.accepted.any() and not outcome.tokens.any()
    outcome = repeated_round([[5.0, 4.0, 0, 0]] * 2, [0], top_k=1)
    assert (outcome.accepted == 1).all(), "p = 1 accepts whatever the number is"
