"""From logits to a token: penalties, top-k, temperature, min-p, top-p, inverse CDF.

Every filter keeps a prefix of the candidates sorted by adjusted logit, so at most 20
candidates are ever looked at and the order of the filters cannot matter
(`docs/model.md` section 6.1).
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ninfer_jax.model.ranking import best

CANDIDATES = 20
NOT_FINITE = -1
"""Token of a row whose logits are not finite: the round fails for that row."""


@flax.struct.dataclass
class SamplingRows:
    """Sampling parameters of the rows of a batch, each [B]."""

    temperature: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    presence: jax.Array
    frequency: jax.Array
    top_k: jax.Array
    seed: tuple[jax.Array, jax.Array]


@flax.struct.dataclass
class Distribution:
    """The filtered target distribution, best candidate first; [B, C] each."""

    ids: jax.Array
    probabilities: jax.Array


def penalize(
    logits: Float[Array, "B V"], counts: Int[Array, "B V"], rows: SamplingRows
) -> Float[Array, "B V"]:
    """`logit - presence [count > 0] - frequency count`."""
    presence = rows.presence[:, None] * (counts > 0)
    return logits - presence - rows.frequency[:, None] * counts.astype(jnp.float32)


def target_distribution(adjusted: Float[Array, "B V"], rows: SamplingRows) -> Distribution:
    """Filters and renormalises adjusted logits; equal logits rank by lower id.

    The top-p mass is measured against the mass of the top-k set. The first candidate always
    stays. Rows with temperature 0 get a one-hot distribution on the best candidate.
    """
    values, ids = best(adjusted, min(CANDIDATES, adjusted.shape[-1]))
    rank = jnp.arange(values.shape[-1])
    greedy = (rows.temperature <= 0)[:, None]
    temperature = jnp.where(greedy, 1.0, rows.temperature[:, None])
    weight = jnp.exp((values - values[:, :1]) / temperature)
    weight = jnp.where(rank < rows.top_k[:, None], weight, 0.0)
    before = jnp.cumsum(weight, axis=-1) - weight
    top_p = rows.top_p[:, None]
    enough = (top_p < 1.0) & (before >= top_p * jnp.sum(weight, axis=-1, keepdims=True))
    keep = ~enough & (weight >= rows.min_p[:, None] * weight[:, :1])
    keep = jnp.where(greedy, False, keep) | (rank == 0)
    kept = jnp.where(keep, weight, 0.0)
    return Distribution(ids, kept / jnp.sum(kept, axis=-1, keepdims=True))


def draw(distribution: Distribution, uniform: Float[Array, "B"]) -> Int[Array, "B"]:
    """Inverse CDF: the first candidate with `uniform < cumulative`, else the last possible one.

    Candidates of probability 0 may stand anywhere, as a residual has holes, and are never
    drawn.
    """
    cumulative = jnp.cumsum(distribution.probabilities, axis=-1)
    possible = distribution.probabilities > 0
    last = possible.shape[-1] - 1 - jnp.argmax(possible[..., ::-1], axis=-1)
    # Sums taken in the order of a tree may grow at a hole by rounding.
    reached = possible & (uniform[:, None] < cumulative)
    chosen = jnp.where(jnp.any(reached, axis=-1), jnp.argmax(reached, axis=-1), last)
    return jnp.take_along_axis(distribution.ids, chosen[:, None], axis=-1)[:, 0]


def best_is_finite(adjusted: Float[Array, "*B V"]) -> Bool[Array, "*B"]:
    """Whether the best logit is a finite number; a NaN anywhere counts as the best."""
    # XLA's maximum on CPU skips NaN in rows of some sizes, so NaN becomes a number first.
    visible = jnp.where(jnp.isnan(adjusted), jnp.inf, adjusted)
    return jnp.isfinite(jnp.max(visible, axis=-1))


def finite_or_sentinel(adjusted: Float[Array, "B V"], token: Int[Array, "B"]) -> Int[Array, "B"]:
    """`token`, or `NOT_FINITE` where the best logit of the row is not a finite number."""
    return jnp.where(best_is_finite(adjusted), token, NOT_FINITE)


def greedy_token(adjusted: Float[Array, "B V"]) -> Int[Array, "B"]:
    """Argmax, lowest id on ties."""
    return finite_or_sentinel(adjusted, jnp.argmax(adjusted, axis=-1).astype(jnp.int32))


def sampled_token(
    adjusted: Float[Array, "B V"], rows: SamplingRows, uniform: Float[Array, "B"]
) -> Int[Array, "B"]:
    """One draw per row; rows with temperature 0 get their argmax."""
    token = draw(target_distribution(adjusted, rows), uniform)
    return finite_or_sentinel(adjusted, token.astype(jnp.int32))
