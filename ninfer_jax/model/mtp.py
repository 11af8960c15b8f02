"""The multi-token-prediction head: one more decoder layer that guesses the token after next.

Row t of its cache pairs the target's hidden state of position t with the token at t + 1, and
predicts the token at t + 2. Applied again to its own hidden state it drafts further ahead.
Embedding and head are the target's own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ninfer_jax.model.attention import AttentionMemory
from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.decoder import DecoderLayer
from ninfer_jax.model.layers import Linear, OffsetNorm
from ninfer_jax.model.rotary import rotary_angles
from ninfer_jax.model.weights import MatrixSpec


class MultiTokenPrediction(nnx.Module):
    """`norm(layer(W [norm e, norm h]))`: e the next token's embedding, h a final-normed hidden."""

    def __init__(self, config: TextConfig):
        width, eps = config.hidden_size, config.rms_norm_eps
        self.embedding_norm = OffsetNorm("mtp/embedding_norm", width, eps)
        self.hidden_norm = OffsetNorm("mtp/hidden_norm", width, eps)
        self.input_projection = Linear(
            MatrixSpec(("mtp/input_projection",), (width,), 2 * width, ("model_width", None))
        )
        self.layer = DecoderLayer("mtp/layers/0", "full_attention", config)
        self.norm = OffsetNorm("mtp/final_norm", width, eps)
        self.config = config

    def __call__(
        self,
        embedding: Float[Array, "B T D"],
        hidden: Float[Array, "B T D"],
        positions: Int[Array, "3 B T"],
        memory: AttentionMemory,
    ) -> tuple[Float[Array, "B T D"], AttentionMemory]:
        """Runs columns.

        Args:
          embedding: rows of the tokens at t + 1, unscaled.
          hidden: of position t, behind the target's final norm or this module's own.
          positions: rotary positions of t.
          memory: this module's own cache.

        Returns:
          Columns for the head (they are normed), which are also the next `hidden`.
        """
        with jax.named_scope("mtp"):
            pair = [self.embedding_norm(embedding), self.hidden_norm(hidden)]
            x = self.input_projection(jnp.concatenate(pair, axis=-1))
            x, memory = self.layer(x, rotary_angles(self.config, positions), memory)
            return self.norm(x), memory
