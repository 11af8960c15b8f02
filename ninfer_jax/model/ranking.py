"""The best few of many scores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def best(
    scores: Float[Array, "... N"], count: int
) -> tuple[Float[Array, "... C"], Int[Array, "... C"]]:
    """The `count` largest scores of each row and their columns, equal scores by lower column.

    Returns:
      Values [..., count] in descending order, and int32 columns [..., count].
    """
    # top_k ranks -0.0 below 0.0; as one number, the lower column wins the tie.
    ranked = jnp.where(scores == 0, 0.0, scores)
    rows = jax.lax.optimization_barrier(ranked.reshape(-1, ranked.shape[-1]))
    # Behind barriers, or XLA merges what stands around with the search and then no longer sees
    # that a partial search will do: it sorts all N.
    found = [jax.lax.optimization_barrier(part) for part in jax.lax.top_k(rows, count)]
    values, columns = (part.reshape(*scores.shape[:-1], count) for part in found)
    return values, columns
