"""The speculative round: fold -> draft -> verify -> accept -> sample, many per dispatch.

A round begins with what the round before left pending: records and features of its columns in
the log, of which now it is known how many were committed. It ends with a new log. So between
dispatches the host may still decide how many outputs of the last round are kept.

      frontier F, anchor a, pending N of the last round
      fold N records, absorb N features        committed state at F
      propose d_1 .. d_K                       P of them count: K, or 0 near a border
      verify [a, d_1 .. d_P] at F .. F + P     state stays at F, W = K + 1 records logged
      accept A, sample t*                      outputs d_1 .. d_A, t*; F' = F + A + 1
"""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ninfer_jax.engine.acceptance import accept
from ninfer_jax.engine.drafters import Anchors, Columns, Drafter, wants_draft
from ninfer_jax.engine.sampling import NOT_FINITE
from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.decoder import Decoder
from ninfer_jax.model.replay import (
    DeltaRecords,
    fold,
    records_spec,
    verified,
    verify_memories,
)
from ninfer_jax.model.slot_rows import kept_spec, put_rows, take_rows
from ninfer_jax.model.state import DecoderState, Rows
from ninfer_jax.quantization.kv import KvCodec

ROUND_FACTS = 2
"""Numbers in front of a round's tokens in the output: drafted, accepted."""


@flax.struct.dataclass
class RoundLog:
    """What the last round of each slot left pending.

    Attributes:
      deltas: records of the Gated DeltaNet layers.
      tokens: [slots, W] int32, the outputs.
      features: [slots, W, F], what the drafter will absorb.
    """

    deltas: tuple[DeltaRecords, ...]
    tokens: jax.Array
    features: jax.Array


def log_spec(config: TextConfig, drafter: Drafter, slots: int, dtype: jnp.dtype) -> RoundLog:
    """The log as `jax.ShapeDtypeStruct`s."""
    width = drafter.draft_tokens + 1
    return RoundLog(
        deltas=records_spec(config, slots, width, dtype),
        tokens=jax.ShapeDtypeStruct((slots, width), jnp.int32),
        features=kept_spec((slots, width, drafter.feature_width(config)), dtype),
    )


def fold_log(decoder: DecoderState, counts, log: RoundLog, slots, count):
    """Commits the first `count[b]` columns of each slot's log to state and penalty counts."""
    with jax.named_scope("fold"):
        tokens = take_rows(log.tokens, slots)
        live = jnp.arange(tokens.shape[1]) < count[:, None]
        column = jnp.where(live, tokens, counts.shape[1])
        counts = counts.at[slots[:, None], column].add(1, mode="drop")
        return fold(decoder, log.deltas, slots, count), counts


@dataclasses.dataclass(frozen=True)
class Speculation:
    """Sizes and parts that fix a speculative program."""

    drafter: Drafter
    codec: KvCodec
    max_context: int
    greedy: bool


@flax.struct.dataclass
class RoundRows:
    """What stays fixed for the rows during a dispatch; see `rounds.RowInputs`."""

    slots: jax.Array
    block_table: jax.Array
    active: jax.Array
    limit: jax.Array
    stop_ids: jax.Array
    sampling: object


@flax.struct.dataclass
class RoundCarry:
    """What a round hands to the next; [B] each but the state.

    Attributes:
      token: the anchor.
      position: its cache position, the frontier.
      fold: records pending for the recurrent state.
      absorb: features pending for the drafter.
      produced: outputs of this dispatch so far.
    """

    token: jax.Array
    position: jax.Array
    fold: jax.Array
    absorb: jax.Array
    produced: jax.Array


@flax.struct.dataclass
class RoundOutput:
    """One round's outcome: drafted P and accepted A [B], outputs [B, W] of which A + 1 count."""

    drafted: jax.Array
    accepted: jax.Array
    tokens: jax.Array
    ended: jax.Array

    def packed(self) -> Int[Array, "B W+2"]:
        """As one row of integers."""
        facts = jnp.stack([self.drafted, self.accepted], axis=1)
        return jnp.concatenate([facts, self.tokens], axis=1)


def speculative_round(spec: Speculation, decoder: Decoder, weights, state, rows: RoundRows, carry):
    """One round over all rows; returns (output, carry, state).

    `state` has `decoder`, `counts`, `log` and `drafter` (`rounds.DeviceState`).
    """
    drafter, width = spec.drafter, spec.drafter.draft_tokens + 1
    committed, counts = fold_log(state.decoder, state.counts, state.log, rows.slots, carry.fold)
    # New records depend on few of the old ones: told nothing, the compiler may write them first
    # and keeps two copies of the whole log for the reads.
    committed, deltas = jax.lax.optimization_barrier((committed, state.log.deltas))
    drafting = wants_draft(
        drafter, rows.active, rows.limit - carry.produced, carry.position, spec.max_context
    )
    with jax.named_scope("draft"):
        pending = Columns(
            slots=rows.slots,
            block_table=rows.block_table,
            features=take_rows(state.log.features, rows.slots),
            tokens=take_rows(state.log.tokens, rows.slots),
            start=carry.position - carry.absorb,
            count=carry.absorb,
        )
        memory, thought = drafter.absorb(decoder, weights, state.drafter, pending)
        anchors = Anchors(rows.slots, rows.block_table, carry.token, carry.position, drafting)
        sampling = None if spec.greedy else rows.sampling
        proposal, memory = drafter.propose(decoder, weights, memory, anchors, thought, sampling)
    drafted = jnp.where(drafting, drafter.draft_tokens, 0)
    with jax.named_scope("verify"):
        call = Rows(
            slots=rows.slots,
            block_table=rows.block_table,
            start=carry.position,
            length=jnp.where(rows.active, drafted + 1, 0),
            fresh=jnp.zeros_like(rows.active),
        )
        ids = jnp.concatenate([carry.token[:, None], proposal.tokens], axis=1)
        hidden, advanced, tapped = decoder(
            ids,
            call.positions(width),
            verify_memories(committed, call, spec.codec),
            drafter.taps,
        )
        committed, deltas = verified(committed, deltas, advanced, call)
        features = drafter.features(decoder, hidden, tapped)
        logits = decoder.logits(hidden)
    with jax.named_scope("accept"):
        accepted = accept(
            logits,
            take_rows(counts, rows.slots),
            proposal,
            drafted,
            rows.sampling,
            carry.position,
            spec.greedy,
        )
    log = RoundLog(
        deltas=deltas,
        tokens=state.log.tokens.at[rows.slots].set(jnp.maximum(accepted.tokens, 0), mode="drop"),
        features=put_rows(state.log.features, features, rows.slots),
    )
    outputs = accepted.accepted + 1
    live = jnp.arange(width) < outputs[:, None]
    stopped = jnp.any(accepted.tokens[..., None] == rows.stop_ids[:, None], axis=-1)
    produced = carry.produced + outputs
    ended = jnp.any(stopped & live, axis=1) | (accepted.tokens[:, 0] == NOT_FINITE)
    ended |= produced >= rows.limit
    anchor = jnp.take_along_axis(accepted.tokens, accepted.accepted[:, None], axis=1)[:, 0]
    output = RoundOutput(drafted, accepted.accepted, accepted.tokens, ended)
    carry = RoundCarry(
        # A sentinel never becomes an input id: its row has ended.
        token=jnp.maximum(anchor, 0),
        position=carry.position + outputs,
        fold=outputs,
        absorb=outputs,
        produced=produced,
    )
    state = state.replace(decoder=committed, counts=counts, log=log, drafter=memory)
    return output, carry, state


def speculative_rounds(
    spec: Speculation,
    decoder: Decoder,
    weights,
    state,
    rows: RoundRows,
    carry: RoundCarry,
    capacity: int,
    rounds: Int[Array, ""],
):
    """Up to `rounds` (at most `capacity`) rounds; stops after the one in which a row ends.

    Returns:
      int32 [B, 1 + capacity (W + 2)]: column 0 is the number of rounds that ran, then drafted,
      accepted and outputs of each; and the state.
    """
    batch = rows.slots.shape[0]
    block = spec.drafter.draft_tokens + 1 + ROUND_FACTS

    def body(loop):
        done, _, out, carry, state = loop
        output, carry, state = speculative_round(spec, decoder, weights, state, rows, carry)
        out = jax.lax.dynamic_update_slice_in_dim(out, output.packed(), done * block, axis=1)
        return done + 1, jnp.any(output.ended & rows.active), out, carry, state

    def more(loop):
        return (loop[0] < jnp.minimum(rounds, capacity)) & ~loop[1]

    out = jnp.zeros((batch, capacity * block), jnp.int32)
    loop = (jnp.int32(0), jnp.bool_(False), out, carry, state)
    done, _, out, _, state = jax.lax.while_loop(more, body, loop)
    return jnp.concatenate([jnp.full((batch, 1), done), out], axis=1), state


def absorb_prompt(
    drafter: Drafter,
    decoder: Decoder,
    weights,
    memory,
    log: RoundLog,
    rows: Rows,
    pending: Int[Array, "B"],
    ids: Int[Array, "B T"],
    hidden: Float[Array, "B T D"],
    tapped: list[Float[Array, "B T D"]],
):
    """What a prefill chunk means for the drafter: (its state, the log).

    First the columns still pending from before the chunk, whose last one is followed by the
    chunk's first token whatever was generated then; after them the chunk's own, but the last
    `lag`, which wait in the log.
    """
    tokens = take_rows(log.tokens, rows.slots)
    last = jnp.arange(tokens.shape[1]) == pending[:, None] - 1
    before = Columns(
        slots=rows.slots,
        block_table=rows.block_table,
        features=take_rows(log.features, rows.slots),
        tokens=jnp.where(last, ids[:, :1], tokens),
        start=rows.start - pending,
        count=pending,
    )
    memory, _ = drafter.absorb(decoder, weights, memory, before)
    # Read before it is written, as in `speculative_round`.
    memory, log = jax.lax.optimization_barrier((memory, log))
    features = drafter.features(decoder, hidden, tapped)
    chunk = Columns(
        slots=rows.slots,
        block_table=rows.block_table,
        features=features,
        tokens=jnp.pad(ids[:, 1:], ((0, 0), (0, 1))),
        start=rows.start,
        count=jnp.maximum(rows.length - drafter.lag, 0),
    )
    memory, _ = drafter.absorb(decoder, weights, memory, chunk)
    if drafter.lag:
        at = jnp.maximum(rows.length - 1, 0)[:, None, None]
        waiting = jnp.take_along_axis(features, at, axis=1)[:, 0]
        log = log.replace(features=put_rows(log.features, waiting, rows.slots, 0))
    return memory, log
