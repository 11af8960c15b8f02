"""Geometry of the demo's drafters, and their losses as functions of f32 arrays.

Labels are the target's own distributions on the text, so a drafter learns what the target
would write, not what the generator wrote.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.decoder import Decoder
from ninfer_jax.model.dflash2 import DFlash2
from ninfer_jax.model.draft_config import DFlash2Config, dflash2_config
from ninfer_jax.model.mtp import MultiTokenPrediction
from ninfer_jax.model.weights import as_weights, spec_tree
from ninfer_jax.quantization.weights import dense
from tools.train_demo.frozen import TAPS

MTP: dict[str, Any] = {"architectures": ["Qwen3_5MTP"]}
"""`components.mtp.config` of the artifact."""

DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "rms_norm_eps": 9.999999974752427e-07,
    "rope_parameters": {"rope_theta": 10000000.0},
    "max_position_embeddings": 65536,
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 256,
    "dflash_config": {
        "target_layer_ids": list(TAPS),
        # <|audio_start|>, as in the family: no text ever has it.
        "mask_token_id": 986,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 32,
        "selector_top_k": 8,
    },
}
"""`components.dflash2.config` of the artifact."""

BLOCK = 11
"""Widest block in training, the anchor included; serving mostly has 8."""
FADE = 6.0
"""Columns after which a column's share in the loss has fallen by e: a late column is used
only if all before it were accepted."""
CHAIN = 4
"""Steps of an MTP chain in training."""


def build_module(name: str, text: TextConfig) -> tuple[nnx.GraphDef, dict, nnx.Module]:
    """Graph, specs and the abstract module of a drafter."""
    module = MultiTokenPrediction(text) if name == "mtp" else DFlash2(dflash2_config(DFLASH2, text))
    graph, _ = nnx.split(module)
    return graph, spec_tree(module), module


def tied(specs: dict, arrays: dict) -> dict:
    """Arrays with the context rows taken from the block's own projection.

    An artifact binds both names to one object.
    """
    if "selector" not in specs:
        return arrays
    layers = {}
    for index, layer in arrays["layers"].items():
        spec = specs["layers"][index]["projection"]["weight"]
        context = layer["projection"]["weight"][spec.rows[0] :]
        layers[index] = layer | {"context": {"weight": context}}
    return arrays | {"layers": layers}


def merge(graph: nnx.GraphDef, specs: dict, arrays: dict) -> nnx.Module:
    """The module with f32 weights."""
    weights = as_weights(specs, tied(specs, arrays), jnp.float32)
    return nnx.merge(graph, nnx.State(weights))


@flax.struct.dataclass
class Blocks:
    """Anchors to train on; N blocks of a batch.

    Attributes:
      row: [N] row of the batch.
      position: [N] of the anchor.
      width: [N] columns of the block, 2 .. BLOCK.
    """

    row: jax.Array
    position: jax.Array
    width: jax.Array


def cross_entropy(logits: Float[Array, "... V"], law: Float[Array, "... V"]) -> jax.Array:
    """Of soft labels."""
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(law * logits, axis=-1)


def block_logits(
    module: DFlash2,
    decoder: Decoder,
    config: DFlash2Config,
    tokens: Int[Array, "B T"],
    features: Float[Array, "B T F"],
    blocks: Blocks,
) -> tuple[Float[Array, "N K D"], Float[Array, "N K V"]]:
    """Hidden columns and head logits of blocks behind their anchors."""
    batch, length = tokens.shape
    columns = jnp.broadcast_to(jnp.arange(length), (batch, length))
    rings = [
        (key[blocks.row], value[blocks.row])
        for key, value in module.context_rows(features, columns)
    ]
    count = blocks.row.shape[0]
    anchor = tokens[blocks.row, blocks.position]
    masks = jnp.full((count, BLOCK - 1), config.mask_token, jnp.int32)
    x = decoder.embedding(jnp.concatenate([anchor[:, None], masks], axis=1))
    offset = jnp.arange(BLOCK)
    positions = blocks.position[:, None] + offset
    ring = jnp.arange(length) < blocks.position[:, None]
    ring = jnp.broadcast_to(ring[:, None], (count, BLOCK, length))
    inside = offset < blocks.width[:, None]
    inside = jnp.broadcast_to(inside[:, None], (count, BLOCK, BLOCK))
    hidden = module.block(x, positions, rings, jnp.concatenate([ring, inside], axis=-1))
    return hidden, decoder.head_logits(hidden)


def dflash2_loss(
    arrays: dict,
    parts: tuple[nnx.GraphDef, dict, DFlash2Config],
    decoder: Decoder,
    tokens: Int[Array, "B T"],
    mask: Float[Array, "B T"],
    features: Float[Array, "B T F"],
    blocks: Blocks,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Head and selector, each column given the true token before it."""
    graph, specs, config = parts
    module = merge(graph, specs, arrays)
    hidden, logits = block_logits(module, decoder, config, tokens, features, blocks)
    place = blocks.position[:, None] + jnp.arange(BLOCK)
    inside = jnp.minimum(place, tokens.shape[1] - 1)
    width = decoder.config.hidden_size
    judges = features[blocks.row[:, None], inside[:, :-1]][..., -width:]
    law = jax.lax.stop_gradient(jax.nn.softmax(decoder.logits(judges), axis=-1))
    text = tokens[blocks.row[:, None], inside]
    learned = mask[blocks.row[:, None], inside[:, 1:]] * (place[:, 1:] < tokens.shape[1])
    learned = learned * (jnp.arange(1, BLOCK) < blocks.width[:, None])
    weight = learned * jnp.exp(-jnp.arange(BLOCK - 1) / FADE)
    (before,), (after,) = (
        parameter.get_value()
        for parameter in (module.selector.predecessors, module.selector.successors)
    )
    gate = module.selector.hidden_projection(hidden)
    pair = (dense(before, jnp.float32).matrix[text[:, :-1]] * gate) @ dense(
        after, jnp.float32
    ).matrix.T
    edges = logits + pair[..., : logits.shape[-1]]
    total = jnp.maximum(weight.sum(), 1.0)
    head_loss = jnp.sum(weight * cross_entropy(logits, law)) / total
    edge_loss = jnp.sum(weight * cross_entropy(edges, law)) / total
    right = (jnp.argmax(edges, axis=-1) == jnp.argmax(law, axis=-1)) | (learned == 0)
    prefix = jnp.sum(jnp.cumprod(right, axis=1) * learned, axis=1)
    seen = jnp.maximum(jnp.sum(learned[:, 0]), 1.0)
    metrics = {
        "head": head_loss,
        "edge": edge_loss,
        "first": jnp.sum(right[:, 0] * learned[:, 0]) / seen,
        "accepted": jnp.sum(prefix * learned[:, 0]) / seen,
    }
    return edge_loss + 0.5 * head_loss, metrics


@flax.struct.dataclass
class ChainMemory:
    """`AttentionMemory` of step s of all chains at once, one chain per column.

    Column t of step s stands at position t + s. It sees rows 0 .. t of the first step, which
    come from the target, the rows of its own chain before it, and itself.
    """

    keys: tuple[jax.Array, ...] = ()
    values: tuple[jax.Array, ...] = ()

    def attend(self, query, key, value):
        """See `ninfer_jax.model.attention.AttentionMemory.attend`."""
        batch, columns, heads, width = query.shape
        groups = key.shape[2]
        grouped = query.reshape(batch, columns, groups, heads // groups, width) * width**-0.5
        keys, values = (*self.keys, key), (*self.values, value)
        scores = jnp.einsum("btgre,bsge->bgrts", grouped, keys[0])
        causal = jnp.tril(jnp.ones((columns, columns), bool))
        scores = jnp.where(causal, scores, -jnp.inf)
        own = [jnp.einsum("btgre,btge->bgrt", grouped, k)[..., None] for k in keys[1:]]
        weights = jax.nn.softmax(jnp.concatenate([scores, *own], axis=-1), axis=-1)
        out = jnp.einsum("bgrts,bsge->btgre", weights[..., :columns], values[0])
        for step, v in enumerate(values[1:]):
            out += jnp.einsum("bgrt,btge->btgre", weights[..., columns + step], v)
        return out.reshape(batch, columns, heads, width), ChainMemory(keys, values)


def mtp_loss(
    arrays: dict,
    parts: tuple[nnx.GraphDef, dict],
    decoder: Decoder,
    tokens: Int[Array, "B T"],
    mask: Float[Array, "B T"],
    features: Float[Array, "B T F"],
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Chains of `CHAIN` guesses from every column."""
    graph, specs = parts
    module = merge(graph, specs, arrays)
    batch, length = tokens.shape
    hidden = decoder.norm(features[..., -decoder.config.hidden_size :])
    law = jax.lax.stop_gradient(jax.nn.softmax(decoder.head_logits(hidden), axis=-1))
    columns = jnp.arange(length)
    memory, loss, total, metrics = ChainMemory(), 0.0, 0.0, {}
    alive = jnp.ones((batch, length), bool)
    for step in range(CHAIN):
        # The token behind position t + step, and the law of the one behind that.
        after = jnp.minimum(columns + step + 1, length - 1)
        positions = jnp.broadcast_to(columns + step, (3, batch, length))
        hidden, memory = module(decoder.embedding(tokens[:, after]), hidden, positions, memory)
        logits = decoder.head_logits(hidden)
        target = law[:, after]
        judged = jnp.minimum(columns + step + 2, length - 1)
        learned = mask[:, judged] * (columns + step + 2 < length)
        learned *= mask[:, jnp.minimum(columns + 1, length - 1)]
        loss += jnp.sum(learned * cross_entropy(logits, target)) * 0.8**step
        total += learned.sum() * 0.8**step
        right = jnp.argmax(logits, axis=-1) == jnp.argmax(target, axis=-1)
        alive = alive & right
        count = jnp.maximum(learned.sum(), 1.0)
        metrics[f"accepted_{step + 1}"] = jnp.sum(alive * learned) / count
    return loss / jnp.maximum(total, 1.0), metrics


def loss_function(name: str, text: TextConfig):
    """The loss of a drafter with its static parts bound, and its abstract module."""
    graph, specs, module = build_module(name, text)
    if name == "mtp":
        return functools.partial(mtp_loss, parts=(graph, specs)), module
    config = dflash2_config(DFLASH2, text)
    return functools.partial(dflash2_loss, parts=(graph, specs, config)), module
