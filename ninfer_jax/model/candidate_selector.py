"""From the drafter's columns to a chain of tokens: the best candidates, then a walk over them.

Each column has its `top_k` best tokens by the head. The walk picks one of them per column by
an edge that also knows the token picked before it:

    edge[c] = score[c] + sum_r pred[previous, r] g[r] succ[candidate c, r]

`previous` is the anchor for the first column, then the token just picked, so it is one of the
column before's candidates: all edges are small products made at once, and the walk itself
only looks rows up.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ninfer_jax.model.draft_config import DFlash2Config
from ninfer_jax.model.layers import Linear
from ninfer_jax.model.ranking import best
from ninfer_jax.model.weights import MatrixSpec
from ninfer_jax.quantization.weights import dense

HIGHEST = jax.lax.Precision.HIGHEST


@flax.struct.dataclass
class Candidates:
    """The best tokens of each drafted column, best first: ids and scores [B, K, C]."""

    ids: jax.Array
    scores: jax.Array


@flax.struct.dataclass
class Walk:
    """What a walk picked.

    Attributes:
      tokens: [B, K] int32.
      probabilities: [B, K, C] f32, the distribution each token was drawn from.
    """

    tokens: jax.Array
    probabilities: jax.Array


def best_candidates(
    logits: Float[Array, "B K V"], ids: Int[Array, "V"] | None, count: int
) -> Candidates:
    """The `count` best columns of `logits`, equal scores by lower id.

    `ids` maps columns to token ids and must ascend, so that the lower column has the lower id;
    None where columns are ids.
    """
    scores, columns = best(logits, count)
    return Candidates(columns if ids is None else ids[columns], scores)


def edge_scores(
    candidates: Candidates,
    gate: Float[Array, "B K R"],
    anchor: Int[Array, "B"],
    predecessors: Float[Array, "V R"],
    successors: Float[Array, "V R"],
) -> Float[Array, "B K C C"]:
    """`edges[b, i, p, c]`: the edge of candidate c of column i after candidate p of column i - 1.

    In column 0 every p stands for the anchor.
    """
    batch, _, count = candidates.ids.shape
    first = jnp.broadcast_to(anchor[:, None, None], (batch, 1, count))
    previous = jnp.concatenate([first, candidates.ids[:, :-1]], axis=1)
    gated = gate.astype(jnp.float32)[:, :, None] * successors[candidates.ids].astype(jnp.float32)
    before = predecessors[previous].astype(jnp.float32)
    pairs = jnp.einsum("bipr,bicr->bipc", before, gated, precision=HIGHEST)
    return candidates.scores[:, :, None].astype(jnp.float32) + pairs


def walk(
    candidates: Candidates,
    edges: Float[Array, "B K C C"],
    temperature: Float[Array, "B"],
    uniforms: Float[Array, "B K"] | None,
) -> Walk:
    """Picks one candidate per column, each knowing the one before.

    Rows with temperature 0 take the largest edge, the better ranked one on ties; others draw
    from `softmax(edge / temperature)` by inverse CDF in rank order. Without `uniforms` all
    rows are greedy.
    """
    batch, length, count = candidates.ids.shape
    rank = jnp.arange(count)
    row = jnp.zeros((batch,), jnp.int32)
    picks, laws = [], []
    for column in range(length):
        edge = jnp.take_along_axis(edges[:, column], row[:, None, None], axis=1)[:, 0]
        row = jnp.argmax(edge, axis=-1).astype(jnp.int32)
        law = (rank == row[:, None]).astype(jnp.float32)
        if uniforms is not None:
            greedy = temperature <= 0
            heat = jnp.where(greedy, 1.0, temperature)
            soft = jax.nn.softmax(edge / heat[:, None], axis=-1)
            below = uniforms[:, column, None] < jnp.cumsum(soft, axis=-1)
            drawn = jnp.where(jnp.any(below, axis=-1), jnp.argmax(below, axis=-1), count - 1)
            row = jnp.where(greedy, row, drawn).astype(jnp.int32)
            law = jnp.where(greedy[:, None], law, soft)
        picks.append(row)
        laws.append(law)
    picked = jnp.stack(picks, axis=1)
    tokens = jnp.take_along_axis(candidates.ids, picked[..., None], axis=-1)[..., 0]
    return Walk(tokens.astype(jnp.int32), jnp.stack(laws, axis=1))


class CandidateSelector(nnx.Module):
    """The learned part: a gate per column and two codebooks of the vocabulary."""

    def __init__(self, config: DFlash2Config):
        prefix, rank = "dflash2/candidate_selector", config.selector_rank
        table = ((config.vocab_size,), rank, ("vocabulary", None))
        self.hidden_projection = Linear(
            MatrixSpec(
                (f"{prefix}/hidden_projection",), (rank,), config.hidden_size, (None, "model_width")
            )
        )
        self.predecessors = nnx.Param(
            MatrixSpec((f"{prefix}/predecessor_codebook",), *table, "codebook")
        )
        self.successors = nnx.Param(
            MatrixSpec((f"{prefix}/successor_codebook",), *table, "codebook")
        )

    def edges(
        self, hidden: Float[Array, "B K D"], candidates: Candidates, anchor: Int[Array, "B"]
    ) -> Float[Array, "B K C C"]:
        """See `edge_scores`."""
        tables = []
        for parameter in (self.predecessors, self.successors):
            (weight,) = parameter.get_value()
            tables.append(dense(weight, hidden.dtype).matrix)
        return edge_scores(candidates, self.hidden_projection(hidden), anchor, *tables)
