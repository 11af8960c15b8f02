"""The text decoder: embedding, layers, final norm, head."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ninfer_jax.model.attention import AttentionMemory, GatedAttention
from ninfer_jax.model.config import LayerKind, TextConfig
from ninfer_jax.model.gated_deltanet import DeltaMemory, GatedDeltaNet
from ninfer_jax.model.layers import Embedding, Linear, OffsetNorm, SwiGLU, residual_add
from ninfer_jax.model.rotary import Rotary, rotary_angles
from ninfer_jax.model.weights import MatrixSpec

LayerMemory = AttentionMemory | DeltaMemory


class DecoderLayer(nnx.Module):
    """`x + mixer(norm x)`, then `x + mlp(norm x)`."""

    def __init__(self, prefix: str, kind: LayerKind, config: TextConfig):
        self.kind = kind
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
        self.layers = nnx.List(
            [
                DecoderLayer(f"text/layers/{index}", kind, config)
                for index, kind in enumerate(config.layer_types)
            ]
        )
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
        taps: Sequence[int] = (),
    ) -> tuple[Float[Array, "B T D"], list[LayerMemory], list[Float[Array, "B T D"]]]:
        """Runs the layers.

        Args:
          ids: token ids.
          positions: rotary positions per axis (time, height, width).
          memories: one per layer.
          taps: layers whose output a drafter reads.

        Returns:
          The residual stream after the last layer (before the final norm), the advanced
          memories, and the residual stream after each tapped layer, in the order of `taps`.
        """
        x = self.embedding(ids)
        rotary = rotary_angles(self.config, positions)
        advanced, tapped = [], {}
        for index, (layer, memory) in enumerate(zip(self.layers, memories, strict=True)):
            with jax.named_scope(f"layer_{index}"):
                x, memory = layer(x, rotary, memory)
            advanced.append(memory)
            if index in taps:
                tapped[index] = x
        return x, advanced, [tapped[index] for index in taps]

    def logits(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Final norm and head, f32, for the addressable ids only."""
        return self.head_logits(self.norm(x))

    def head_logits(self, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """The head alone, on columns that are normed already (those of a drafter are)."""
        with jax.named_scope("head"):
            return self.head(normed, jnp.float32)[..., : self.config.addressable_ids]


def build_decoder(config: TextConfig, dtype: jnp.dtype) -> tuple[nnx.GraphDef, dict]:
    """The static part of the decoder and its tree of weight specs."""
    graph, state = nnx.split(Decoder(config, dtype))
    return graph, nnx.to_pure_dict(state)


def merge_decoder(graph: nnx.GraphDef, weights: dict) -> Decoder:
    """The decoder with a tree of weights; done while tracing, so it costs nothing later."""
    return nnx.merge(graph, nnx.State(weights))
