"""The replay log: verify leaves recurrent state alone, a fold commits what was accepted.

A verify call runs W columns of which only a prefix will be kept, and how many is known after
sampling. Attention forgets for free (cache rows behind the frontier are unreachable); a
recurrent state does not. So `VerifyMemory` reads the committed state, keeps a working copy
inside the call and writes one record per column; `fold` applies the first N records to the
committed state with the arithmetic of the verify call (`delta_update`), so the state after
folding N is the one that verify had after column N - 1.

      slot 3, frontier 10, W = 4:  verify runs positions 10 .. 13, state stays at 10
                                   2 outputs committed: fold 2, state and frontier at 12
                                   records 2 and 3 are never read
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.delta_rule import (
    delta_update,
    recurrent_delta_rule,
    rule_decay,
    rule_inputs,
    rule_key,
    rule_value,
)
from ninfer_jax.model.slot_rows import kept_spec, put_rows, take_rows
from ninfer_jax.model.state import (
    DecoderState,
    DeltaState,
    KvPool,
    PagedMemory,
    Rows,
    live_columns,
)
from ninfer_jax.quantization.kv import KvCodec


@flax.struct.dataclass
class DeltaRecords:
    """What one Gated DeltaNet layer leaves per verified column; [slots, W, ...] each.

    Attributes:
      key: [slots, W, Hk, Dk] behind the convolution, not normalised, activation type.
      value: [slots, W, H, Dv] behind the convolution, activation type.
      g, beta: [slots, W, H] f32.
      columns: [slots, W, C] raw projected columns, for the convolution state.
    """

    key: jax.Array
    value: jax.Array
    g: jax.Array
    beta: jax.Array
    columns: jax.Array


def records_spec(
    config: TextConfig, slots: int, width: int, dtype: jnp.dtype
) -> tuple[DeltaRecords, ...]:
    """The records of all Gated DeltaNet layers as `jax.ShapeDtypeStruct`s."""

    def array(*dims: int, dtype=dtype) -> jax.ShapeDtypeStruct:
        return kept_spec((slots, width, *dims), dtype)

    heads = config.linear_num_value_heads
    layer = DeltaRecords(
        key=array(config.linear_num_key_heads, config.linear_key_head_dim),
        value=array(heads, config.linear_value_head_dim),
        g=array(heads, dtype=jnp.float32),
        beta=array(heads, dtype=jnp.float32),
        columns=array(config.convolution_width),
    )
    return (layer,) * len(config.linear_attention_layers)


@flax.struct.dataclass
class VerifyMemory:
    """`DeltaMemory` that reads the committed state and writes records of the call's rows."""

    state: DeltaState
    rows: Rows
    records: DeltaRecords | None = None

    def window(self, columns, taps):
        """See `ninfer_jax.model.gated_deltanet.DeltaMemory.window`; nothing is advanced."""
        kept = self.state.convolution.at[self.rows.slots].get(mode="fill", fill_value=0)
        window = jnp.concatenate([kept, columns], axis=1)
        nothing = jnp.zeros((), columns.dtype)
        return window, self.replace(records=DeltaRecords(*(nothing,) * 4, columns))

    def apply(self, q, k, v, g, beta):
        """See `ninfer_jax.model.gated_deltanet.DeltaMemory.apply`; nothing is advanced."""
        live = live_columns(self.rows, q.shape[1])[..., None]
        # Selection, not multiplication: inert columns may hold NaN.
        q, k, v = (jnp.where(live[..., None], x, 0) for x in (q, k, v))
        g, beta = jnp.where(live, g, 0.0), jnp.where(live, beta, 0.0)
        kept = self.state.recurrent.at[self.rows.slots].get(mode="fill", fill_value=0)
        most = jnp.max(self.rows.length)
        out, _ = recurrent_delta_rule(*rule_inputs(q, k, v), g, beta, kept, most)
        return out, self.replace(records=DeltaRecords(k, v, g, beta, self.records.columns))


def verify_memories(
    state: DecoderState, rows: Rows, codec: KvCodec
) -> list[PagedMemory | VerifyMemory]:
    """One memory per layer for a verify call: attention writes its pages, the rest records."""
    return [
        PagedMemory(layer, rows, codec) if isinstance(layer, KvPool) else VerifyMemory(layer, rows)
        for layer in state.layers
    ]


def verified(
    state: DecoderState,
    log: Sequence[DeltaRecords],
    advanced: Sequence[PagedMemory | VerifyMemory],
    rows: Rows,
) -> tuple[DecoderState, tuple[DeltaRecords, ...]]:
    """State and log behind a verify call: new pages, untouched recurrent state, new records."""
    layers, logs, logged = [], [], iter(log)
    for layer, memory in zip(state.layers, advanced, strict=True):
        if isinstance(memory, PagedMemory):
            layers.append(memory.pool)
            continue
        layers.append(layer)
        logs.append(
            jax.tree.map(
                lambda kept, new: put_rows(kept, new, rows.slots),
                next(logged),
                memory.records,
            )
        )
    return DecoderState(tuple(layers)), tuple(logs)


def fold(
    state: DecoderState,
    log: Sequence[DeltaRecords],
    slots: Int[Array, "B"],
    count: Int[Array, "B"],
) -> DecoderState:
    """Applies the first `count[b]` records of each row's slot to its committed state.

    Count 0 changes no bit, and records behind the count are never used: they may hold NaN.
    """
    layers, logged = [], iter(log)
    for layer in state.layers:
        layers.append(
            layer if isinstance(layer, KvPool) else _fold_layer(layer, next(logged), slots, count)
        )
    return DecoderState(tuple(layers))


def _fold_layer(
    layer: DeltaState, records: DeltaRecords, slots: jax.Array, count: jax.Array
) -> DeltaState:
    kept, columns = take_rows(layer.convolution, slots), take_rows(records.columns, slots)
    # The last taps - 1 of old state + folded columns; with 3 kept and count 1: window 1, 2, 3.
    window = jnp.concatenate([kept, columns], axis=1)
    last = count[:, None] + jnp.arange(kept.shape[1])
    tail = jnp.take_along_axis(window, last[..., None], axis=1)
    recorded = (records.key, records.value, records.g, records.beta)
    recorded = tuple(take_rows(array, slots) for array in recorded)
    recurrent = fold_columns(take_rows(layer.recurrent, slots), *recorded, count)
    return DeltaState(
        layer.recurrent.at[slots].set(recurrent, mode="drop"),
        layer.convolution.at[slots].set(tail, mode="drop"),
    )


@jax.jit
def fold_columns(state, key, value, g, beta, count):
    """Runs `delta_update` over the first `count[b]` columns of each row.

    Walks to the largest count only: a round that accepted little folds little.
    """
    key, value = rule_key(key, value.shape[2]), rule_value(value)
    decays = rule_decay(g)

    def body(carry):
        column, state = carry
        k, v, decay, strength = (
            jax.lax.dynamic_index_in_dim(x, column, axis=1, keepdims=False)
            for x in (key, value, decays, beta)
        )
        new = delta_update(state, k, v, decay, strength)
        live = (column < count)[:, None, None, None]
        return column + 1, jnp.where(live, new, state)

    most = jnp.max(count)
    return jax.lax.while_loop(lambda carry: carry[0] < most, body, (jnp.int32(0), state))[1]
