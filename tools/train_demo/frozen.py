"""The demo model as its artifact stores it, frozen: what drafters learn from.

A drafter has to guess what the quantised model writes, so its features and labels come from
the decoded words, not from the weights before quantisation.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ninfer_jax.artifact import open_artifact
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.checkpoint.from_artifact import load_weights
from ninfer_jax.model.attention import NoMemory
from ninfer_jax.model.compilation import compiler_options
from ninfer_jax.model.config import TextConfig, text_config
from ninfer_jax.model.decoder import Decoder, build_decoder, merge_decoder
from ninfer_jax.model.gated_deltanet import FreshDelta

TAPS = (0, 2, 3)
"""Layers whose output the DFlash2 drafter reads. The last one is also the hidden state."""


@dataclasses.dataclass(frozen=True)
class FrozenModel:
    """The demo's decoder with f32 weights."""

    config: TextConfig
    graph: nnx.GraphDef
    weights: dict

    def merge(self, weights: dict | None = None) -> Decoder:
        """The decoder; `weights` where they are a traced argument."""
        return merge_decoder(self.graph, self.weights if weights is None else weights)

    def observe(self, tokens: np.ndarray) -> np.ndarray:
        """Features [B, T, taps D] f16 of whole sequences."""
        return np.asarray(_observe(self.config, self.graph, self.weights, tokens))


def load_frozen(path: Path) -> FrozenModel:
    """Reads the artifact."""
    dtype = jnp.dtype(jnp.float32)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    with open_artifact(path) as artifact:
        config = text_config(artifact.components["text"].config, check_artifact(artifact))
        graph, specs = build_decoder(config, dtype)
        return FrozenModel(config, graph, load_weights(artifact, specs, dtype, "dense", sharding))


@functools.partial(
    jax.jit, static_argnames=("config", "graph"), compiler_options=compiler_options("cpu")
)
def _observe(config: TextConfig, graph: nnx.GraphDef, weights: dict, tokens: jax.Array):
    decoder = merge_decoder(graph, weights)
    batch, columns = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(columns), (3, batch, columns))
    memories = [
        NoMemory() if kind == "full_attention" else FreshDelta() for kind in config.layer_types
    ]
    _, _, tapped = decoder(tokens, positions, memories, TAPS)
    return jnp.concatenate(tapped, axis=-1).astype(jnp.float16)
