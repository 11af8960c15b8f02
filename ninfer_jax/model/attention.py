"""Gated full attention: grouped queries, head norms, partial rotary, output gate.

What is attended and where keys and values live is the business of an `AttentionMemory`:
training attends the columns of the call, serving attends pages of a pool.
"""

from __future__ import annotations

from typing import Protocol, Self

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.layers import Linear, OffsetNorm
from ninfer_jax.model.rotary import Rotary, rotate
from ninfer_jax.model.weights import MatrixSpec


class AttentionMemory(Protocol):
    """Keeps keys and values of one layer and attends to them."""

    def attend(
        self,
        query: Float[Array, "B T H E"],
        key: Float[Array, "B T G E"],
        value: Float[Array, "B T G E"],
    ) -> tuple[Float[Array, "B T H E"], Self]:
        """Adds the new columns, then returns softmax(q k / sqrt(E)) v in f32, causal."""
        ...


@flax.struct.dataclass
class NoMemory:
    """Attends the columns of this call only: a whole sequence from its start (training)."""

    def attend(self, query, key, value):
        """Dense causal attention; see `AttentionMemory.attend`."""
        batch, columns, heads, width = query.shape
        groups = key.shape[2]
        grouped = query.reshape(batch, columns, groups, heads // groups, width)
        scores = jnp.einsum(
            "btgre,bsge->bgrts", grouped, key, preferred_element_type=jnp.float32
        ) / jnp.sqrt(jnp.float32(width))
        causal = jnp.tril(jnp.ones((columns, columns), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
        out = jnp.einsum("bgrts,bsge->btgre", weights, value, preferred_element_type=jnp.float32)
        return out.reshape(batch, columns, heads, width), self


class GatedAttention(nnx.Module):
    """Query head n reads key/value head n // (H / G); the gate acts per element.

    Rows of the stored projection are head-major; query and gate are separate parameters
    (the checkpoint's q_proj interleaves them per head).
    """

    def __init__(self, prefix: str, config: TextConfig):
        width, key_value = config.query_width, config.key_value_width
        self.projection = Linear(
            MatrixSpec(
                tuple(f"{prefix}/{part}" for part in ("query", "key", "gate", "value")),
                (width, key_value, width, key_value),
                config.hidden_size,
                ("heads", "model_width"),
            )
        )
        self.query_norm = OffsetNorm(f"{prefix}/query_norm", config.head_dim, config.rms_norm_eps)
        self.key_norm = OffsetNorm(f"{prefix}/key_norm", config.head_dim, config.rms_norm_eps)
        self.output = Linear(
            MatrixSpec(
                (f"{prefix}/output",), (config.hidden_size,), width, ("model_width", "heads")
            )
        )
        self.heads = config.num_attention_heads
        self.key_value_heads = config.num_key_value_heads
        self.head_dim = config.head_dim

    def __call__(
        self, h: Float[Array, "B T D"], rotary: Rotary, memory: AttentionMemory
    ) -> tuple[Float[Array, "B T D"], AttentionMemory]:
        batch, columns, _ = h.shape
        query, key, gate, value = self.projection.parts(h)
        query = query.reshape(batch, columns, self.heads, self.head_dim)
        key = key.reshape(batch, columns, self.key_value_heads, self.head_dim)
        value = value.reshape(batch, columns, self.key_value_heads, self.head_dim)
        query = rotate(self.query_norm(query), rotary).astype(h.dtype)
        key = rotate(self.key_norm(key), rotary).astype(h.dtype)
        out, memory = memory.attend(query, key, value)
        out = out.reshape(batch, columns, -1) * jax.nn.sigmoid(gate.astype(jnp.float32))
        return self.output(out.astype(h.dtype)), memory
