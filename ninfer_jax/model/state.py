"""What a serving decoder remembers: KV pages and recurrent state, as one donated pytree.

Pages and slots are ids handed out on the host (`ninfer_jax/engine/pages.py`, `slots.py`).
A row of a batch names its slot and its block table; an inactive row has length 0 and a slot
out of range, so that nothing of it is ever written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.delta_rule import (
    chunked_delta_rule,
    recurrent_delta_rule,
    rule_inputs,
)
from ninfer_jax.pallas.paged_attention.api import paged_attention, write_pages
from ninfer_jax.pallas.paged_attention.reference import PAGE
from ninfer_jax.quantization.kv import KvCodec, Planes

RECURRENT_COLUMNS = 16
"""Up to this many columns the delta rule runs token by token, so that decode and verify
share one arithmetic; longer calls use the chunked form."""


@flax.struct.dataclass
class KvPool:
    """Keys and values of one full-attention layer; planes [P, G, 64, X]."""

    keys: Planes
    values: Planes


@flax.struct.dataclass
class DeltaState:
    """State of one Gated DeltaNet layer.

    Attributes:
      recurrent: [slots, H, Dv, Dk] f32.
      convolution: [slots, taps - 1, C], the last raw projected columns, oldest first.
    """

    recurrent: jax.Array
    convolution: jax.Array


@flax.struct.dataclass
class DecoderState:
    """One entry per decoder layer, in layer order."""

    layers: tuple[KvPool | DeltaState, ...]


@dataclasses.dataclass(frozen=True)
class StateShape:
    """Sizes of the state: physical pages, sequence slots, codec, convolution type."""

    pages: int
    slots: int
    codec: KvCodec
    dtype: jnp.dtype


def pool_spec(config: TextConfig, shape: StateShape) -> KvPool:
    """The pages of one full-attention layer as `jax.ShapeDtypeStruct`s."""

    def planes() -> Planes:
        return {
            name: jax.ShapeDtypeStruct(
                (shape.pages, config.num_key_value_heads, PAGE, elements), dtype
            )
            for name, (elements, dtype) in shape.codec.planes(config.head_dim).items()
        }

    return KvPool(planes(), planes())


def state_spec(config: TextConfig, shape: StateShape) -> DecoderState:
    """The state as `jax.ShapeDtypeStruct`s."""

    def layer(kind: str) -> KvPool | DeltaState:
        if kind == "full_attention":
            return pool_spec(config, shape)
        recurrent = (
            shape.slots,
            config.linear_num_value_heads,
            config.linear_value_head_dim,
            config.linear_key_head_dim,
        )
        columns = (shape.slots, config.linear_conv_kernel_dim - 1, config.convolution_width)
        return DeltaState(
            jax.ShapeDtypeStruct(recurrent, jnp.float32),
            jax.ShapeDtypeStruct(columns, shape.dtype),
        )

    return DecoderState(tuple(layer(kind) for kind in config.layer_types))


def state_bytes(spec: DecoderState) -> int:
    """Bytes of a state (or of its spec)."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(spec))


def zero_state(spec: DecoderState) -> DecoderState:
    """A state of zeros; what it holds never matters, every reader masks."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec)


@flax.struct.dataclass
class Rows:
    """The rows of one forward call.

    Attributes:
      slots: [B] int32 state slot; out of range for an inactive row.
      block_table: [B, M] int32 pages.
      start: [B] int32 cache position of column 0.
      length: [B] int32 live columns, 0..T.
      fresh: [B] bool, start from the zero state whatever the slot holds.
    """

    slots: jax.Array
    block_table: jax.Array
    start: jax.Array
    length: jax.Array
    fresh: jax.Array

    def positions(self, columns: int) -> Int[Array, "3 B T"]:
        """Rotary positions of text: the cache position on all three axes."""
        position = self.start[:, None] + jnp.arange(columns)
        return jnp.broadcast_to(position, (3, *position.shape))


def live_columns(rows: Rows, columns: int) -> Bool[Array, "B T"]:
    """Which columns of a call are live."""
    return jnp.arange(columns) < rows.length[:, None]


@flax.struct.dataclass
class PagedMemory:
    """`AttentionMemory` over a page pool."""

    pool: KvPool
    rows: Rows
    codec: KvCodec = flax.struct.field(pytree_node=False)

    def attend(self, query, key, value):
        """See `ninfer_jax.model.attention.AttentionMemory.attend`."""
        rows, codec = self.rows, self.codec
        place = (rows.block_table, rows.start, rows.length)
        pool = KvPool(
            write_pages(self.pool.keys, codec, key, *place),
            write_pages(self.pool.values, codec, value, *place),
        )
        out = paged_attention(query, pool.keys, pool.values, codec, *place)
        return out, self.replace(pool=pool)


def select_fresh(fresh: jax.Array, kept: jax.Array) -> jax.Array:
    """Zeros for fresh rows, by selection: a kept NaN must not survive its sequence."""
    return jnp.where(fresh.reshape(-1, *(1,) * (kept.ndim - 1)), jnp.zeros_like(kept), kept)


@flax.struct.dataclass
class SlotMemory:
    """`DeltaMemory` over state slots. Inert columns have g = 0 and beta = 0."""

    state: DeltaState
    rows: Rows

    def window(self, columns: Float[Array, "B T C"], taps: int):
        """See `ninfer_jax.model.gated_deltanet.DeltaMemory.window`."""
        rows = self.rows
        kept = self.state.convolution.at[rows.slots].get(mode="fill", fill_value=0)
        window = jnp.concatenate([select_fresh(rows.fresh, kept), columns], axis=1)
        # The last taps - 1 live columns of history + call. With 3 kept columns and length 1
        # they are window columns 1, 2, 3; with length 0 the kept ones, unchanged.
        last = rows.length[:, None] + jnp.arange(taps - 1)
        tail = jnp.take_along_axis(window, last[..., None], axis=1)
        convolution = self.state.convolution.at[rows.slots].set(tail, mode="drop")
        return window, self.replace(state=self.state.replace(convolution=convolution))

    def apply(self, q, k, v, g, beta):
        """See `ninfer_jax.model.gated_deltanet.DeltaMemory.apply`."""
        rows, columns = self.rows, q.shape[1]
        live = live_columns(rows, columns)[..., None]
        # Selection, not multiplication: inert columns may hold NaN.
        q, k, v = rule_inputs(*(jnp.where(live[..., None], x, 0) for x in (q, k, v)))
        g, beta = jnp.where(live, g, 0.0), jnp.where(live, beta, 0.0)
        kept = self.state.recurrent.at[rows.slots].get(mode="fill", fill_value=0)
        kept = select_fresh(rows.fresh, kept)
        if columns <= RECURRENT_COLUMNS:
            out, new = recurrent_delta_rule(q, k, v, g, beta, kept, jnp.max(rows.length))
        else:
            out, new = chunked_delta_rule(q, k, v, g, beta, kept)
        recurrent = self.state.recurrent.at[rows.slots].set(new, mode="drop")
        return out, self.replace(state=self.state.replace(recurrent=recurrent))


def memories(state: DecoderState, rows: Rows, codec: KvCodec) -> list[PagedMemory | SlotMemory]:
    """One memory per layer, over the state."""
    return [
        PagedMemory(layer, rows, codec) if isinstance(layer, KvPool) else SlotMemory(layer, rows)
        for layer in state.layers
    ]


def advanced_state(advanced: Sequence[PagedMemory | SlotMemory]) -> DecoderState:
    """The state that a forward call left behind."""
    return DecoderState(
        tuple(
            memory.pool if isinstance(memory, PagedMemory) else memory.state for memory in advanced
        )
    )
