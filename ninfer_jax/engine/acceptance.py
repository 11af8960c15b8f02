"""Which drafts the target accepts, and the token behind them.

Column i of a verify call judges draft i + 1. With p the filtered target distribution of a
column (`sampling.py`) and q the distribution the draft was drawn from:

    accept draft d of column i   iff  u q(d) < p(d)
    first rejection at i         t* from normalise(max(p - q, 0))
    all P drafts accepted        t* from p of column P

so outputs have the law of p whatever q is (`docs/model.md` section 6.5). Temperature 0 is the
same with one-hot p: drafts are accepted while they are the argmax.

      P 3, drafts 7 4 9, judged by columns 0 1 2; column 3 is the bonus
      7 accepted, 4 rejected: column 1 gives t* = 5     tokens 7 5 0 0, A 1
      a round needs columns 0 .. A: whatever stands in 2 and 3 was not looked at
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ninfer_jax.engine.random import Purpose, uniform
from ninfer_jax.engine.sampling import (
    NOT_FINITE,
    Distribution,
    SamplingRows,
    best_is_finite,
    draw,
    penalize,
    target_distribution,
)


@flax.struct.dataclass
class Proposal:
    """What a drafter proposes for the rows of a batch.

    Attributes:
      tokens: [B, K] int32.
      ids: [B, K, C] int32, the candidates of q; None where q is one-hot on the token.
      probabilities: [B, K, C] f32, the very numbers that the tokens were drawn with.
    """

    tokens: jax.Array
    ids: jax.Array | None = None
    probabilities: jax.Array | None = None


@flax.struct.dataclass
class Acceptance:
    """The outcome of a round.

    Attributes:
      tokens: [B, K + 1] int32: the A accepted drafts, the target's own token, then zeros.
        `NOT_FINITE` and zeros where the row failed.
      accepted: [B] int32, A; 0 where the row failed.
    """

    tokens: jax.Array
    accepted: jax.Array


def accept(
    logits: Float[Array, "B W V"],
    counts: Int[Array, "B V"],
    proposal: Proposal,
    drafted: Int[Array, "B"],
    sampling: SamplingRows,
    position: Int[Array, "B"],
    greedy: bool,
) -> Acceptance:
    """Judges a proposal.

    A row fails if the best adjusted logit of a column 0 .. A is not a finite number. Such a
    column never accepts its draft, so only column A can be one.

    Args:
      logits: of the verify call's W = K + 1 columns.
      counts: output tokens committed, for the penalties; drafts are added column by column.
      proposal: drafts at or behind column `drafted` may be anything.
      drafted: P, how many drafts count; 0 is an ordinary decode step, draw for draw.
      sampling: of the rows.
      position: cache position of the anchor.
      greedy: all rows have temperature 0; then there is no top-k and no random number.
    """
    adjusted = penalize_columns(logits, counts, proposal.tokens, sampling)
    finite = best_is_finite(adjusted)
    judged = jnp.arange(proposal.tokens.shape[1]) < drafted[:, None]
    best = jnp.argmax(adjusted, axis=-1).astype(jnp.int32)
    if greedy:
        agreed = proposal.tokens == best[:, :-1]
        accepted = _prefix(agreed & judged & finite[:, :-1])
        token = jnp.take_along_axis(best, accepted[:, None], axis=1)[:, 0]
    else:
        law = _laws(adjusted, sampling)
        chance = _chance(law, proposal.tokens)
        claimed = _claimed(proposal)
        seed = tuple(half[:, None] for half in sampling.seed)
        columns = position[:, None] + 1 + jnp.arange(proposal.tokens.shape[1])
        luck = uniform(seed, columns, Purpose.ACCEPT)
        agreed = luck * claimed < chance
        # A one-hot target takes its best token whatever q says of it.
        certain = proposal.tokens == best[:, :-1]
        agreed = jnp.where((sampling.temperature <= 0)[:, None], certain, agreed)
        accepted = _prefix(agreed & judged & finite[:, :-1])
        token = _own_token(law, proposal, drafted, accepted, sampling, position)
    column = jnp.arange(adjusted.shape[1])
    padded = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
    tokens = jnp.where(column < accepted[:, None], padded, 0)
    tokens = jnp.where(column == accepted[:, None], token[:, None], tokens)
    sound = jnp.take_along_axis(finite, accepted[:, None], axis=1)
    tokens = jnp.where(sound, tokens, jnp.where(column == 0, NOT_FINITE, 0))
    return Acceptance(tokens.astype(jnp.int32), jnp.where(sound[:, 0], accepted, 0))


def penalize_columns(
    logits: Float[Array, "B W V"],
    counts: Int[Array, "B V"],
    drafts: Int[Array, "B K"],
    sampling: SamplingRows,
) -> Float[Array, "B W V"]:
    """Penalised logits; column i counts drafts 1 .. i as if they had been emitted."""
    ids = jnp.arange(logits.shape[-1])
    columns, count = [], counts
    for column in range(logits.shape[1]):
        columns.append(penalize(logits[:, column], count, sampling))
        if column < drafts.shape[1]:
            count = count + (ids == drafts[:, column, None])
    return jnp.stack(columns, axis=1)


def _prefix(accepted: Bool[Array, "B K"]) -> Int[Array, "B"]:
    """Length of the leading run of True."""
    return jnp.sum(jnp.cumprod(accepted.astype(jnp.int32), axis=1), axis=1)


def _laws(adjusted: Float[Array, "B W V"], sampling: SamplingRows) -> Distribution:
    """The target distribution of every column; [B, W, C] each."""
    batch, width, vocabulary = adjusted.shape
    repeated = jax.tree.map(lambda field: jnp.repeat(field, width, axis=0), sampling)
    law = target_distribution(adjusted.reshape(batch * width, vocabulary), repeated)
    return jax.tree.map(lambda field: field.reshape(batch, width, -1), law)


def _chance(law: Distribution, drafts: Int[Array, "B K"]) -> Float[Array, "B K"]:
    """p of each draft; 0 outside the support."""
    same = law.ids[:, :-1] == drafts[..., None]
    return jnp.sum(jnp.where(same, law.probabilities[:, :-1], 0.0), axis=-1)


def _claimed(proposal: Proposal) -> Float[Array, "B K"]:
    """q of each draft."""
    if proposal.ids is None:
        return jnp.ones(proposal.tokens.shape, jnp.float32)
    same = proposal.ids == proposal.tokens[..., None]
    return jnp.sum(jnp.where(same, proposal.probabilities, 0.0), axis=-1)


def _own_token(
    law: Distribution,
    proposal: Proposal,
    drafted: Int[Array, "B"],
    accepted: Int[Array, "B"],
    sampling: SamplingRows,
    position: Int[Array, "B"],
) -> Int[Array, "B"]:
    """t*: a correction, a bonus, or the token of an ordinary step."""
    at = accepted[:, None, None]
    ids = jnp.take_along_axis(law.ids, at, axis=1)[:, 0]
    target = jnp.take_along_axis(law.probabilities, at, axis=1)[:, 0]
    rejected = accepted < drafted
    draft = jnp.minimum(at, proposal.tokens.shape[1] - 1)
    if proposal.ids is None:
        token = jnp.take_along_axis(proposal.tokens, draft[..., 0], axis=1)
        subtracted = (ids == token).astype(jnp.float32)
    else:
        candidates = jnp.take_along_axis(proposal.ids, draft, axis=1)[:, 0]
        claimed = jnp.take_along_axis(proposal.probabilities, draft, axis=1)[:, 0]
        same = ids[:, :, None] == candidates[:, None]
        subtracted = jnp.sum(jnp.where(same, claimed[:, None], 0.0), axis=-1)
    residual = jnp.maximum(target - subtracted, 0.0)
    mass = jnp.sum(residual, axis=-1, keepdims=True)
    # No mass is left by rounding only, or where the target is certain: then p itself.
    keep = rejected[:, None] & (mass > 0) & (sampling.temperature > 0)[:, None]
    chosen = jnp.where(keep, residual / jnp.where(mass > 0, mass, 1.0), target)
    luck = jnp.where(
        rejected,
        uniform(sampling.seed, position + accepted + 1, Purpose.CORRECTION),
        jnp.where(
            drafted > 0,
            uniform(sampling.seed, position + drafted + 1, Purpose.BONUS),
            uniform(sampling.seed, position, Purpose.DECODE),
        ),
    )
    return draw(Distribution(ids, chosen), luck)
