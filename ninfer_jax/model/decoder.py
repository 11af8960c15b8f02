"""The text decoder: embedding, layers, final norm, head."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ninfer_jax.model.attention import AttentionMemory, GatedAttention
from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.gated_deltanet import DeltaMemory, GatedDeltaNet
from ninfer_jax.model.layers import Embedding, Linear, OffsetNorm, SwiGLU, residual_add
from ninfer_jax.model.rotary import Rotary, rotary_angles
from ninfer_jax.model.weights import MatrixSpec

LayerMemory = AttentionMemory | DeltaMemory


class DecoderLayer(nnx.Module):
    """`x + mixer(norm x)`, then `x + mlp(norm x)`."""

    def __init__(self, index: int, config: TextConfig):
        prefix = f"text/layers/{index}"
        self.kind = config.layer_types[index]
        self.input_norm = OffsetNorm(
            f"{prefix}/input_norm", config.hidden_size, config.rms_norm_eps
        )
        if self.kind == "full_attention":
            self.attention = GatedAttention(f"{prefix}/attention", config)
        else:
            self.gdn = GatedDeltaNet(f"{prefix}/gdn", config)
        self.post_attention_norm = OffsetNorm(
            f"{prefix}/post_attention_norm", config.hidden_size, config.rms_norm_eps
        )
        self.mlp = SwiGLU(f"{prefix}/mlp", config.hidden_size, config.intermediate_size)

    def __call__(
        self, x: Float[Array, "B T D"], rotary: Rotary, memory: LayerMemory
    ) -> tuple[Float[Array, "B T D"], LayerMemory]:
        h = self.input_norm(x)
        if self.kind == "full_attention":
            mixed, memory = self.attention(h, rotary, memory)
        else:
            mixed, memory = self.gdn(h, memory)
        x = residual_add(x, mixed)
        return residual_add(x, self.mlp(self.post_attention_norm(x))), memory


class Decoder(nnx.Module):
    """Maps token ids to hidden columns and hidden columns to logits.

    Built abstractly: every weight is a spec (`ninfer_jax/model/weights.py`) until a tree of
    weights is merged in.
    """

    def __init__(self, config: TextConfig, dtype: jnp.dtype):
        vocabulary = ("vocabulary", "model_width")
        self.embedding = Embedding(
            MatrixSpec(
                ("text/token_embedding",),
                (config.vocab_size,),
                config.hidden_size,
                vocabulary,
                "unit",
            ),
            dtype,
        )
        self.layers = nnx.List([DecoderLayer(i, config) for i in range(config.num_layers)])
        self.norm = OffsetNorm("text/final_norm", config.hidden_size, config.rms_norm_eps)
        self.head = Linear(
            MatrixSpec(("text/output_head",), (config.vocab_size,), config.hidden_size, vocabulary)
        )
        self.config = config

    def __call__(
        self,
        ids: Int[Array, "B T"],
        positions: Int[Array, "3 B T"],
        memories: Sequence[LayerMemory],
    ) -> tuple[Float[Array, "B T D"], list[LayerMemory]]:
        """Runs the layers.

        Args:
          ids: token ids.
          positions: rotary positions per axis (time, height, width).
          memories: one per layer.

        Returns:
          The residual stream after the last layer (before the final norm), and the advanced
          memories.
        """
        x = self.embedding(ids)
        rotary = rotary_angles(self.config, positions)
        advanced = []
        for index, (layer, memory) in enumerate(zip(self.layers, memories, strict=True)):
            with jax.named_scope(f"layer_{index}"):
                x, memory = layer(x, rotary, memory)
            advanced.append(memory)
        return x, advanced

    def logits(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Final norm and head, f32, for the addressable ids only."""
        with jax.named_scope("head"):
            return self.head(self.norm(x), jnp.float32)[..., : self.config.addressable_ids]


def build_decoder(config: TextConfig, dtype: jnp.dtype) -> tuple[nnx.GraphDef, dict]:
    """The static part of the decoder and its tree of weight specs."""
    graph, state = nnx.split(Decoder(config, dtype))
    return graph, nnx.to_pure_dict(state)


def merge_decoder(graph: nnx.GraphDef, weights: dict) -> Decoder:
    """The decoder with a tree of weights; done while tracing, so it costs nothing later."""
    return nnx.merge(graph, nnx.State(weights))
