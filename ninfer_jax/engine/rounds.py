"""The device programs, as pure functions of (weights, device state, small inputs).

* `prefill` runs one chunk of one prompt and returns its last hidden column;
* `first_token` draws the first output token from that column;
* `decode_rounds` runs up to `rounds` rounds over all rows in one `while_loop` and stops
  early after the round in which a row ends;
* `drafted_rounds` is the same with a drafter (`speculation.py`).

Small inputs travel as two arrays, one of integers and one of floats, because each array
costs a transfer. Nothing here depends on a request: shapes are fixed when the programs are
compiled (`ninfer_jax/engine/programs.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ninfer_jax.engine.drafters import Drafter, DrafterWeights
from ninfer_jax.engine.random import Purpose, uniform
from ninfer_jax.engine.sampling import (
    NOT_FINITE,
    SamplingRows,
    greedy_token,
    penalize,
    sampled_token,
)
from ninfer_jax.engine.speculation import (
    RoundCarry,
    RoundLog,
    RoundRows,
    Speculation,
    absorb_prompt,
    fold_log,
    speculative_rounds,
)
from ninfer_jax.model.decoder import Decoder, merge_decoder
from ninfer_jax.model.state import DecoderState, Rows, advanced_state, memories
from ninfer_jax.quantization.kv import KvCodec

STOP_TOKENS = 4
"""Stop ids a row may name."""

INTEGERS = (
    "slot",
    "token",
    "position",
    "length",
    "limit",
    "fold",
    "absorb",
    "fresh",
    "top_k",
    "seed_high",
    "seed_low",
)
FLOATS = ("temperature", "top_p", "min_p", "presence", "frequency")
HEADER = len(INTEGERS) + STOP_TOKENS
"""Columns of the integer input before the block table: fields, then stop ids."""


@flax.struct.dataclass
class DeviceState:
    """Everything a sequence keeps on the device; donated to every program.

    Attributes:
      decoder: KV pages and recurrent state.
      counts: [slots, V] int32, output tokens committed per slot, for the penalties.
      log: what the last speculative round of a slot left pending; None without a drafter.
      drafter: what the drafter keeps.
    """

    decoder: DecoderState
    counts: jax.Array
    log: RoundLog | None = None
    drafter: Any = None


@flax.struct.dataclass
class ProgramWeights:
    """Weights of the decoder, and of the drafter where there is one."""

    decoder: dict
    drafter: DrafterWeights | None = None


@dataclasses.dataclass(frozen=True)
class ProgramModel:
    """The static part of the model that all programs share."""

    graph: nnx.GraphDef
    codec: KvCodec
    drafter: Drafter | None = None

    def merge(self, weights: ProgramWeights) -> Decoder:
        """The decoder with its weights."""
        return merge_decoder(self.graph, weights.decoder)


@flax.struct.dataclass
class RowInputs:
    """The inputs of a batch of rows, unpacked; each field of `INTEGERS` is [B]."""

    fields: dict[str, jax.Array]
    stop_ids: jax.Array
    block_table: jax.Array
    sampling: SamplingRows


def unpack_rows(integers: Int[Array, "B N"], floats: Float[Array, "B F"]) -> RowInputs:
    """Splits the packed inputs: header fields, stop ids, block table; sampling floats."""
    fields = {name: integers[:, i] for i, name in enumerate(INTEGERS)}
    numbers = {name: floats[:, i] for i, name in enumerate(FLOATS)}
    seed = tuple(
        jax.lax.bitcast_convert_type(fields[half], jnp.uint32) for half in ("seed_high", "seed_low")
    )
    return RowInputs(
        fields=fields,
        stop_ids=integers[:, len(INTEGERS) : HEADER],
        block_table=integers[:, HEADER:],
        sampling=SamplingRows(top_k=fields["top_k"], seed=seed, **numbers),
    )


def choose_token(
    logits: Float[Array, "B V"],
    counts: Int[Array, "B V"],
    sampling: SamplingRows,
    position: Int[Array, "B"],
    purpose: Purpose,
    greedy: bool,
) -> Int[Array, "B"]:
    """One token per row. With `greedy` (all rows are) the program has no top-k at all."""
    adjusted = penalize(logits, counts, sampling)
    if greedy:
        return greedy_token(adjusted)
    return sampled_token(adjusted, sampling, uniform(sampling.seed, position, purpose))


def count_token(
    counts: Int[Array, "S V"], slot: Int[Array, "B"], token: Int[Array, "B"]
) -> Int[Array, "S V"]:
    """Adds one committed token per row; the sentinel and inactive rows add nothing."""
    column = jnp.where(token >= 0, token, counts.shape[1])
    return counts.at[slot, column].add(1, mode="drop")


def prefill(
    model: ProgramModel,
    weights: ProgramWeights,
    state: DeviceState,
    ids: Int[Array, "1 T"],
    integers: Int[Array, "1 N"],
    floats: Float[Array, "1 F"],
) -> tuple[Float[Array, "1 D"], DeviceState]:
    """Runs one chunk; returns the residual stream of its last live column.

    What a drafted round left pending is committed first.

    The final norm and the head run on one column only, in `first_token`, and only for the
    chunk that ends a prompt.
    """
    inputs = unpack_rows(integers, floats)
    length = inputs.fields["length"]
    rows = Rows(
        slots=inputs.fields["slot"],
        block_table=inputs.block_table,
        start=inputs.fields["position"],
        length=length,
        fresh=inputs.fields["fresh"] > 0,
    )
    decoder, drafter = model.merge(weights), model.drafter
    if drafter is not None:
        fold = inputs.fields["fold"]
        committed, counts = fold_log(state.decoder, state.counts, state.log, rows.slots, fold)
        state = state.replace(decoder=committed, counts=counts)
    hidden, advanced, tapped = decoder(
        ids,
        rows.positions(ids.shape[1]),
        memories(state.decoder, rows, model.codec),
        () if drafter is None else drafter.taps,
    )
    state = state.replace(decoder=advanced_state(advanced))
    if drafter is not None:
        pending = (rows, inputs.fields["absorb"], ids, hidden, tapped)
        kept = absorb_prompt(drafter, decoder, weights.drafter, state.drafter, state.log, *pending)
        state = state.replace(drafter=kept[0], log=kept[1])
    last = jnp.take_along_axis(hidden, (length - 1)[:, None, None], axis=1)[:, 0]
    return last, state


def first_token(
    model: ProgramModel,
    greedy: bool,
    weights: ProgramWeights,
    state: DeviceState,
    hidden: Float[Array, "1 D"],
    integers: Int[Array, "1 N"],
    floats: Float[Array, "1 F"],
) -> tuple[Int[Array, "1"], DeviceState]:
    """Draws the token at the prompt length and starts the counts of the slot."""
    inputs = unpack_rows(integers, floats)
    slot = inputs.fields["slot"]
    logits = model.merge(weights).logits(hidden)
    nothing = jnp.zeros((1, state.counts.shape[1]), jnp.int32)
    position = inputs.fields["position"] + inputs.fields["length"]
    token = choose_token(logits, nothing, inputs.sampling, position, Purpose.FIRST_TOKEN, greedy)
    counts = state.counts.at[slot].set(nothing, mode="drop")
    state = state.replace(counts=count_token(counts, slot, token))
    if state.log is not None:
        # The token behind a prompt column that waits for it.
        tokens = state.log.tokens.at[slot, 0].set(jnp.maximum(token, 0), mode="drop")
        state = state.replace(log=state.log.replace(tokens=tokens))
    return token, state


def decode_rounds(
    model: ProgramModel,
    greedy: bool,
    capacity: int,
    weights: ProgramWeights,
    state: DeviceState,
    integers: Int[Array, "B N"],
    floats: Float[Array, "B F"],
    rounds: Int[Array, ""],
) -> tuple[Int[Array, "B R+1"], DeviceState]:
    """Up to `rounds` (at most `capacity`) decode rounds.

    Args:
      integers, floats: packed rows; `token` is the anchor at cache position `position`,
        `limit` the most tokens the row may produce. An inactive row has length 0 and a slot
        out of range.

    Returns:
      int32 [B, capacity + 1]: column 0 is the number of rounds that ran, then the tokens.
    """
    inputs = unpack_rows(integers, floats)
    decoder = model.merge(weights)
    slot, active = inputs.fields["slot"], inputs.fields["length"] > 0
    batch = slot.shape[0]

    def body(carry):
        done, _, token, position, out, state = carry
        rows = Rows(
            slots=slot,
            block_table=inputs.block_table,
            start=position,
            length=inputs.fields["length"],
            fresh=jnp.zeros((batch,), bool),
        )
        hidden, advanced, _ = decoder(
            token[:, None], rows.positions(1), memories(state.decoder, rows, model.codec)
        )
        counts = state.counts.at[slot].get(mode="fill", fill_value=0)
        token = choose_token(
            decoder.logits(hidden[:, 0]),
            counts,
            inputs.sampling,
            position,
            Purpose.DECODE,
            greedy,
        )
        state = state.replace(
            decoder=advanced_state(advanced), counts=count_token(state.counts, slot, token)
        )
        out = jax.lax.dynamic_update_slice_in_dim(out, token[:, None], done, axis=1)
        done = done + 1
        ended = jnp.any(token[:, None] == inputs.stop_ids, axis=-1)
        ended |= (token == NOT_FINITE) | (done >= inputs.fields["limit"])
        # A sentinel never becomes an input id: its row has ended.
        return done, jnp.any(ended & active), jnp.maximum(token, 0), position + 1, out, state

    def more(carry):
        return (carry[0] < jnp.minimum(rounds, capacity)) & ~carry[1]

    carry = (
        jnp.int32(0),
        jnp.bool_(False),
        inputs.fields["token"],
        inputs.fields["position"],
        jnp.zeros((batch, capacity), jnp.int32),
        state,
    )
    done, _, _, _, out, state = jax.lax.while_loop(more, body, carry)
    return jnp.concatenate([jnp.full((batch, 1), done), out], axis=1), state


def drafted_rounds(
    model: ProgramModel,
    greedy: bool,
    capacity: int,
    max_context: int,
    weights: ProgramWeights,
    state: DeviceState,
    integers: Int[Array, "B N"],
    floats: Float[Array, "B F"],
    rounds: Int[Array, ""],
) -> tuple[Int[Array, "B X"], DeviceState]:
    """Up to `rounds` speculative rounds; see `speculation.speculative_rounds`.

    Beside the fields that `decode_rounds` takes, `fold` and `absorb` say how many columns of
    the slot's log are committed.
    """
    inputs = unpack_rows(integers, floats)
    fields = inputs.fields
    rows = RoundRows(
        slots=fields["slot"],
        block_table=inputs.block_table,
        active=fields["length"] > 0,
        limit=fields["limit"],
        stop_ids=inputs.stop_ids,
        sampling=inputs.sampling,
    )
    carry = RoundCarry(
        token=fields["token"],
        position=fields["position"],
        fold=fields["fold"],
        absorb=fields["absorb"],
        produced=jnp.zeros_like(fields["token"]),
    )
    spec = Speculation(model.drafter, model.codec, max_context, greedy)
    decoder = model.merge(weights)
    return speculative_rounds(spec, decoder, weights.drafter, state, rows, carry, capacity, rounds)
