"""DFlash2: a small transformer that drafts a block of tokens in one call.

Its memory of the past is a ring of keys and values per layer, projected from features of the
target: the residual stream behind a few of its layers (`draft_ring.py`). A block is the
anchor and K mask tokens, filled in place: all columns see each other and the ring. Around
attention and MLP of every layer lies a dynamic grouped convolution over the block.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ninfer_jax.model.candidate_selector import CandidateSelector
from ninfer_jax.model.draft_config import DFlash2Config
from ninfer_jax.model.layers import Linear, PlainNorm, SwiGLU, residual_add
from ninfer_jax.model.rotary import Rotary, inverse_frequencies, rotate
from ninfer_jax.model.weights import MatrixSpec, VectorSpec

PREPARE, FINISH = 0, 1
"""Sides of a dynamic convolution: in front of its branch and behind it."""


def draft_rotary(config: DFlash2Config, positions: Int[Array, "B T"]) -> Rotary:
    """Angles over all dims of a head, by cache position also where the target has three axes."""
    frequency = inverse_frequencies(config.head_dim, config.rope_theta)
    angle = positions.astype(jnp.float32)[..., None] * frequency
    return Rotary(jnp.cos(angle), jnp.sin(angle))


class DynamicConvolution(nnx.Module):
    """A causal convolution over the block whose kernel depends on the column.

        conv_s(X)[i, h] = sum_tap (base[s, tap, h] + delta_i[s, tap, h // group]) X[i - tap, h]

    Columns before the first count as zero. `delta` comes from the branch's normed input, also
    for the side behind the branch.
    """

    def __init__(self, prefix: str, config: DFlash2Config):
        width, taps = config.hidden_size, config.conv_taps
        groups = width // config.group_size
        self.base = nnx.Param(VectorSpec(f"{prefix}/base_kernel", (2, taps, width), "first_tap"))
        self.projection = Linear(
            MatrixSpec(
                (f"{prefix}/kernel_projection",),
                (2 * taps * groups,),
                width,
                (None, "model_width"),
                "zeros",
            )
        )
        self.taps, self.groups, self.group_size = taps, groups, config.group_size

    def kernel(self, normed: Float[Array, "B T D"]) -> Float[Array, "B T 2 taps D"]:
        """The coefficients of every column, f32."""
        delta = self.projection(normed, jnp.float32)
        delta = delta.reshape(*normed.shape[:-1], 2, self.taps, self.groups)
        delta = jnp.repeat(delta, self.group_size, axis=-1)
        return self.base.get_value().astype(jnp.float32) + delta

    def __call__(
        self, x: Float[Array, "B T D"], kernel: Float[Array, "B T 2 taps D"], side: int
    ) -> Float[Array, "B T D"]:
        """One side, rounded once."""
        wide, columns = x.astype(jnp.float32), x.shape[1]
        padded = jnp.pad(wide, ((0, 0), (self.taps - 1, 0), (0, 0)))
        mixed = sum(
            kernel[:, :, side, tap] * padded[:, self.taps - 1 - tap : self.taps - 1 - tap + columns]
            for tap in range(self.taps)
        )
        return mixed.astype(x.dtype)


def block_attention(
    query: Float[Array, "B T H E"],
    key: Float[Array, "B S G E"],
    value: Float[Array, "B S G E"],
    seen: jax.Array,
) -> Float[Array, "B T H E"]:
    """`softmax(q k / sqrt(E)) v` over the keys with `seen` [B, T, S]; f32.

    Rows that nobody sees may hold NaN: values are selected, not multiplied by zero.
    """
    batch, columns, heads, width = query.shape
    groups = key.shape[2]
    grouped = query.reshape(batch, columns, groups, heads // groups, width)
    scores = jnp.einsum("btgre,bsge->bgrts", grouped, key, preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, None, None], scores * width**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    used = jnp.any(seen, axis=1)[:, :, None, None]
    out = jnp.einsum(
        "bgrts,bsge->btgre",
        weights,
        jnp.where(used, value, 0),
        preferred_element_type=jnp.float32,
    )
    return out.reshape(batch, columns, heads, width)


class DraftLayer(nnx.Module):
    """Attention over ring and block, then MLP, each inside a dynamic convolution."""

    def __init__(self, prefix: str, config: DFlash2Config):
        width, eps, key_value = config.hidden_size, config.rms_norm_eps, config.key_value_width
        attention, axes = f"{prefix}/attention", ("heads", "model_width")
        self.input_norm = PlainNorm(f"{prefix}/input_norm", width, eps)
        self.post_attention_norm = PlainNorm(f"{prefix}/post_attention_norm", width, eps)
        self.projection = Linear(
            MatrixSpec(
                tuple(f"{attention}/{part}" for part in ("query", "key", "value")),
                (config.query_width, key_value, key_value),
                width,
                axes,
            )
        )
        self.context = Linear(
            MatrixSpec(
                tuple(f"{attention}/{part}" for part in ("context_key", "context_value")),
                (key_value, key_value),
                width,
                axes,
            )
        )
        self.query_norm = PlainNorm(f"{attention}/query_norm", config.head_dim, eps)
        self.key_norm = PlainNorm(f"{attention}/key_norm", config.head_dim, eps)
        self.output = Linear(
            MatrixSpec(
                (f"{attention}/output",), (width,), config.query_width, ("model_width", "heads")
            )
        )
        self.mlp = SwiGLU(f"{prefix}/mlp", width, config.intermediate_size)
        self.attention_conv = DynamicConvolution(f"{prefix}/attention_conv", config)
        self.mlp_conv = DynamicConvolution(f"{prefix}/mlp_conv", config)
        self.config = config

    def _heads(self, x: jax.Array, heads: int) -> jax.Array:
        return x.reshape(*x.shape[:2], heads, self.config.head_dim)

    def context_rows(
        self, context: Float[Array, "B T D"], rotary: Rotary
    ) -> tuple[Float[Array, "B T G E"], Float[Array, "B T G E"]]:
        """Keys and values of target columns, in the type of `context`."""
        groups = self.config.num_key_value_heads
        # The projection is not rounded before the norm.
        key, value = self.context.parts(context, jnp.float32)
        key = rotate(self.key_norm(self._heads(key, groups)), rotary).astype(context.dtype)
        return key, self._heads(value, groups).astype(context.dtype)

    def __call__(
        self,
        x: Float[Array, "B W D"],
        rotary: Rotary,
        ring: tuple[Float[Array, "B R G E"], Float[Array, "B R G E"]],
        seen: jax.Array,
    ) -> Float[Array, "B W D"]:
        """`seen` [B, W, R + W] says which ring rows and block columns a column attends to."""
        groups = self.config.num_key_value_heads
        normed = self.input_norm(x).astype(x.dtype)
        kernel = self.attention_conv.kernel(normed)
        query, key, value = self.projection.parts(self.attention_conv(normed, kernel, PREPARE))
        query = self._heads(query, self.config.num_attention_heads)
        query = rotate(self.query_norm(query), rotary).astype(x.dtype)
        key = rotate(self.key_norm(self._heads(key, groups)), rotary).astype(x.dtype)
        keys = jnp.concatenate([ring[0].astype(x.dtype), key], axis=1)
        values = jnp.concatenate([ring[1].astype(x.dtype), self._heads(value, groups)], axis=1)
        mixed = block_attention(query, keys, values, seen).astype(x.dtype)
        mixed = self.output(mixed.reshape(*x.shape[:2], -1))
        x = residual_add(x, self.attention_conv(mixed, kernel, FINISH))
        normed = self.post_attention_norm(x).astype(x.dtype)
        kernel = self.mlp_conv.kernel(normed)
        mixed = self.mlp(self.mlp_conv(normed, kernel, PREPARE))
        return residual_add(x, self.mlp_conv(mixed, kernel, FINISH))


class DFlash2(nnx.Module):
    """The drafter. Embedding and head are the target's (or the proposal head)."""

    def __init__(self, config: DFlash2Config):
        width, eps = config.hidden_size, config.rms_norm_eps
        self.feature_projection = Linear(
            MatrixSpec(
                ("dflash2/feature_projection",),
                (width,),
                config.feature_width,
                ("model_width", None),
            )
        )
        self.context_norm = PlainNorm("dflash2/context_norm", width, eps)
        self.layers = nnx.List(
            [DraftLayer(f"dflash2/layers/{index}", config) for index in range(config.num_layers)]
        )
        self.norm = PlainNorm("dflash2/final_norm", width, eps)
        self.selector = CandidateSelector(config)
        self.config = config

    def context_rows(
        self, features: Float[Array, "B T F"], positions: Int[Array, "B T"]
    ) -> list[tuple[Float[Array, "B T G E"], Float[Array, "B T G E"]]]:
        """Keys and values of target columns for every layer, from one projection of them."""
        with jax.named_scope("draft_context"):
            context = self.feature_projection(features)
            context = self.context_norm(context).astype(features.dtype)
            rotary = draft_rotary(self.config, positions)
            return [layer.context_rows(context, rotary) for layer in self.layers]

    def __call__(
        self,
        x: Float[Array, "B W D"],
        positions: Int[Array, "B W"],
        rings: Sequence[tuple[jax.Array, jax.Array]],
        ring_seen: jax.Array,
    ) -> Float[Array, "B K D"]:
        """Runs one block.

        Args:
          x: the target's embedding rows of [anchor, mask, ..., mask].
          positions: cache positions of the block columns.
          rings: keys and values [B, R, G, E] per layer.
          ring_seen: [B, W, R], ring rows that a column attends to.

        Returns:
          The normed columns of the mask tokens, for the head.
        """
        batch, width, _ = x.shape
        block = jnp.ones((batch, width, width), bool)
        return self.block(x, positions, rings, jnp.concatenate([ring_seen, block], axis=-1))

    def block(
        self,
        x: Float[Array, "B W D"],
        positions: Int[Array, "B W"],
        rings: Sequence[tuple[jax.Array, jax.Array]],
        seen: jax.Array,
    ) -> Float[Array, "B K D"]:
        """The same with the block's own columns in `seen` [B, W, R + W]: training hides some."""
        with jax.named_scope("draft_block"):
            rotary = draft_rotary(self.config, positions)
            for layer, ring in zip(self.layers, rings, strict=True):
                x = layer(x, rotary, ring, seen)
            return self.norm(x[:, 1:]).astype(x.dtype)
