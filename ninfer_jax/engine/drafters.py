"""The drafters as parts of a device program: what they keep, absorb and propose.

A drafter sees the target's committed columns as features. It absorbs each of them exactly
once, in order: those of a prompt while it is prefilled, those of a round at the start of the
next one, when it is known how many were kept. Then it proposes K tokens behind the anchor.

      prompt of 5, MTP:      absorbs 0 .. 3; column 4 waits for the first token (`lag` 1)
      round at frontier 5:   absorbs 4, proposes 6 .. 5 + K from the anchor at 5
      3 outputs committed:   the next round absorbs 5, 6, 7
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ninfer_jax.engine.acceptance import Proposal
from ninfer_jax.engine.random import Purpose, uniform
from ninfer_jax.engine.sampling import SamplingRows
from ninfer_jax.model.candidate_selector import best_candidates, walk
from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.decoder import Decoder
from ninfer_jax.model.draft_config import DFlash2Config
from ninfer_jax.model.draft_ring import append_rows, ring_rows, ring_spec, seen_rows
from ninfer_jax.model.state import PagedMemory, Rows, StateShape, pool_spec
from ninfer_jax.pallas.packed_matmul.api import packed_matmul
from ninfer_jax.quantization.kv import KvCodec
from ninfer_jax.quantization.weights import Weight


@flax.struct.dataclass
class ProposalHead:
    """Some rows of the output head, for drafting only.

    Attributes:
      head: [N, D].
      ids: [N] int32, ascending: the token of each row; None where row and id are the same.
    """

    head: tuple[Weight, ...]
    ids: jax.Array | None


@flax.struct.dataclass
class DrafterWeights:
    """Weights of the drafter's module, and of the proposal head where one is used."""

    module: dict
    proposal: ProposalHead | None = None


@flax.struct.dataclass
class Columns:
    """Committed target columns of some rows.

    Attributes:
      slots: [B] state slot; out of range for an inactive row.
      block_table: [B, M] pages.
      features: [B, T, F].
      tokens: [B, T], the token behind each column.
      start: [B] cache position of column 0.
      count: [B] live columns.
    """

    slots: jax.Array
    block_table: jax.Array
    features: jax.Array
    tokens: jax.Array
    start: jax.Array
    count: jax.Array

    def rows(self) -> Rows:
        """As the rows of a forward call."""
        nobody = jnp.zeros(self.start.shape, bool)
        return Rows(self.slots, self.block_table, self.start, self.count, nobody)


@flax.struct.dataclass
class Anchors:
    """Where rows stand.

    Attributes:
      slots, block_table: as in `Columns`.
      token: [B] the newest token, known but not run.
      position: [B] its cache position, the frontier.
      drafting: [B] whether the row wants a proposal; nothing is written for others.
    """

    slots: jax.Array
    block_table: jax.Array
    token: jax.Array
    position: jax.Array
    drafting: jax.Array


class Drafter(Protocol):
    """The static part of a drafter; hashable, as programs are traced for it."""

    name: str
    """Value of `--spec`."""
    draft_tokens: int
    """K, the tokens of a proposal."""
    taps: tuple[int, ...]
    """Layers of the target whose output it reads."""
    lag: int
    """Columns of a finished prompt that wait for the token behind them."""
    room: int
    """Positions that must be left in the context for a round of drafting."""

    def feature_width(self, config: TextConfig) -> int:
        """Width of the features of one column."""
        ...

    def state_spec(self, config: TextConfig, shape: StateShape) -> Any:
        """What it keeps on the device."""
        ...

    def features(
        self, decoder: Decoder, hidden: Float[Array, "B T D"], tapped: list[Float[Array, "B T D"]]
    ) -> Float[Array, "B T F"]:
        """What it will want to know of target columns."""
        ...

    def absorb(
        self, decoder: Decoder, weights: DrafterWeights, state: Any, columns: Columns
    ) -> tuple[Any, Any]:
        """Takes in committed columns; returns the state and a thought to propose from."""
        ...

    def propose(
        self,
        decoder: Decoder,
        weights: DrafterWeights,
        state: Any,
        anchors: Anchors,
        thought: Any,
        sampling: SamplingRows | None,
    ) -> tuple[Proposal, Any]:
        """Drafts K tokens behind each anchor; `sampling` None where all rows are greedy."""
        ...


def draft_logits(
    decoder: Decoder, weights: DrafterWeights, normed: Float[Array, "... D"]
) -> tuple[Float[Array, "... N"], Int[Array, "N"] | None]:
    """Scores of tokens, and which tokens: None for all ids in order."""
    if weights.proposal is None:
        return decoder.head_logits(normed), None
    with jax.named_scope("proposal_head"):
        logits = packed_matmul(normed, weights.proposal.head, jnp.float32)
    ids = weights.proposal.ids
    return (logits[..., : decoder.config.addressable_ids] if ids is None else logits), ids


@dataclasses.dataclass(frozen=True)
class MtpDrafter:
    """The multi-token-prediction layer, applied K times; its proposals are its best guesses."""

    graph: nnx.GraphDef
    codec: KvCodec
    draft_tokens: int
    name = "mtp"
    taps = ()
    lag = 1

    @property
    def room(self) -> int:
        """See `Drafter.room`."""
        return 2 * self.draft_tokens

    def feature_width(self, config: TextConfig) -> int:
        """See `Drafter.feature_width`."""
        return config.hidden_size

    def state_spec(self, config: TextConfig, shape: StateShape):
        """A page pool of one layer, under the same block tables as the decoder's."""
        return pool_spec(config, shape)

    def features(self, decoder, hidden, tapped):
        """The hidden state behind the target's final norm."""
        return decoder.norm(hidden)

    def _run(self, decoder, weights, pool, rows: Rows, tokens, hidden):
        module = nnx.merge(self.graph, nnx.State(weights.module))
        memory = PagedMemory(pool, rows, self.codec)
        normed, memory = module(
            decoder.embedding(tokens), hidden, rows.positions(tokens.shape[1]), memory
        )
        return normed, memory.pool

    def absorb(self, decoder, weights, state, columns: Columns):
        """Rows of its cache from target columns; the thought is its last column."""
        rows = columns.rows()
        features = columns.features.astype(decoder.embedding.dtype)
        normed, pool = self._run(decoder, weights, state, rows, columns.tokens, features)
        last = jnp.maximum(columns.count - 1, 0)
        return pool, jnp.take_along_axis(normed, last[:, None, None], axis=1)

    def propose(self, decoder, weights, state, anchors: Anchors, thought, sampling):
        """K guesses, each from its own column before."""

        def guess(normed):
            logits, ids = draft_logits(decoder, weights, normed[:, 0])
            best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            return best if ids is None else ids[best]

        def step(carry, index):
            pool, normed, token = carry
            rows = Rows(
                anchors.slots,
                anchors.block_table,
                anchors.position + index,
                anchors.drafting.astype(jnp.int32),
                jnp.zeros_like(anchors.drafting),
            )
            normed, pool = self._run(decoder, weights, pool, rows, token[:, None], normed)
            token = guess(normed)
            return (pool, normed, token), token

        first = guess(thought)
        carry = (state, thought, first)
        steps = jnp.arange(self.draft_tokens - 1)
        (state, _, _), later = jax.lax.scan(step, carry, steps)
        return Proposal(jnp.concatenate([first[:, None], later.T], axis=1)), state


@dataclasses.dataclass(frozen=True)
class DFlash2Drafter:
    """The block drafter; at temperature its proposals are draws from their own law."""

    graph: nnx.GraphDef
    config: DFlash2Config
    codec: KvCodec
    draft_tokens: int
    name = "dflash2"
    lag = 0

    @property
    def taps(self) -> tuple[int, ...]:
        """See `Drafter.taps`."""
        return self.config.taps

    @property
    def room(self) -> int:
        """See `Drafter.room`."""
        return self.draft_tokens + 1

    def feature_width(self, config: TextConfig) -> int:
        """See `Drafter.feature_width`."""
        return self.config.feature_width

    def state_spec(self, config: TextConfig, shape: StateShape):
        """A ring of context rows per layer and slot."""
        return ring_spec(self.config, shape.slots, self.codec)

    def features(self, decoder, hidden, tapped):
        """The residual stream behind the tapped layers, side by side."""
        return jnp.concatenate(tapped, axis=-1)

    def absorb(self, decoder, weights, state, columns: Columns):
        """Appends context rows; there is nothing to remember beside the ring."""
        module = nnx.merge(self.graph, nnx.State(weights.module))
        features = columns.features.astype(decoder.embedding.dtype)
        positions = columns.start[:, None] + jnp.arange(features.shape[1])
        rows = module.context_rows(features, positions)
        place = (columns.slots, columns.start, columns.count)
        return append_rows(state, rows, self.codec, *place), None

    def propose(self, decoder, weights, state, anchors: Anchors, thought, sampling):
        """One block, the best candidates of each column, and a walk over them."""
        module = nnx.merge(self.graph, nnx.State(weights.module))
        batch, length = anchors.token.shape[0], self.draft_tokens
        masks = jnp.full((batch, length), self.config.mask_token, jnp.int32)
        ids = jnp.concatenate([anchors.token[:, None], masks], axis=1)
        positions = anchors.position[:, None] + jnp.arange(length + 1)
        seen = seen_rows(anchors.position, positions, self.config.sliding_window)
        rings = ring_rows(state, self.codec, anchors.slots)
        hidden = module(decoder.embedding(ids), positions, rings, seen)
        logits, tokens = draft_logits(decoder, weights, hidden)
        with jax.named_scope("selector"):
            candidates = best_candidates(logits, tokens, self.config.top_k)
            edges = module.selector.edges(hidden, candidates, anchors.token)
            if sampling is None:
                greedy = jnp.zeros((batch,), jnp.float32)
                return Proposal(walk(candidates, edges, greedy, None).tokens), state
            seed = tuple(half[:, None] for half in sampling.seed)
            uniforms = uniform(seed, positions[:, :-1], Purpose.PROPOSAL)
            walked = walk(candidates, edges, sampling.temperature, uniforms)
            return Proposal(walked.tokens, candidates.ids, walked.probabilities), state


def wants_draft(
    drafter: Drafter,
    active: Bool[Array, "B"],
    remaining: Int[Array, "B"],
    position: Int[Array, "B"],
    max_context: int,
) -> Bool[Array, "B"]:
    """Rows with room for a whole round: K + 1 outputs left, and the drafter's positions.

    A draft is never shortened: near a border a row takes ordinary steps.
    """
    enough = remaining >= drafter.draft_tokens + 1
    return active & enough & (position + drafter.room <= max_context)
