"""The decoder as a differentiable function of f32 arrays, for the demo's training.

The same modules as in serving, over whole sequences that start from an empty state. With
`fake_quantize` each weight passes through the numeric format it will be stored in
(straight-through gradient), so that the quantised artifact keeps the accuracy.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ninfer_jax.model.attention import NoMemory
from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.decoder import Decoder, build_decoder, merge_decoder
from ninfer_jax.model.gated_deltanet import FreshDelta
from ninfer_jax.model.weights import MatrixSpec, as_weights, initial_arrays, is_spec
from ninfer_jax.quantization.fake import fake_quantize as through_format
from ninfer_jax.quantization.fake import storage_format


def build_training_model(config: TextConfig, seed: int) -> dict:
    """Random f32 arrays, one per weight, as a nested dict."""
    return initial_arrays(Decoder(config, jnp.float32), seed)


def quantized_view(specs: dict, arrays: dict) -> dict:
    """Each array as its storage format represents it, with the identity as gradient."""

    def view(spec, array):
        name = spec.names[0] if isinstance(spec, MatrixSpec) else spec.name
        return through_format(array, storage_format(name))

    return jax.tree.map(view, specs, arrays, is_leaf=is_spec)


@functools.cache
def _decoder(config: TextConfig):
    return build_decoder(config, jnp.float32)


def training_logits(
    params: dict, tokens: Int[Array, "B T"], config: TextConfig, fake_quantize: bool
) -> Float[Array, "B T V"]:
    """Logits of whole sequences, each from an empty state."""
    graph, specs = _decoder(config)
    arrays = quantized_view(specs, params) if fake_quantize else params
    decoder = merge_decoder(graph, as_weights(specs, arrays, jnp.float32))
    batch, columns = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(columns), (3, batch, columns))
    memories = [
        NoMemory() if kind == "full_attention" else FreshDelta() for kind in config.layer_types
    ]
    hidden, _, _ = decoder(tokens, positions, memories)
    return decoder.logits(hidden)


def training_loss(
    params: dict,
    tokens: Int[Array, "B T"],
    loss_mask: Float[Array, "B T"],
    *,
    config: TextConfig,
    fake_quantize: bool,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean cross-entropy of predicting token t + 1, over positions where its mask is 1.

    Args:
      params: tree of `build_training_model`.
      tokens: ids; padding may hold any id.
      loss_mask: 1 for tokens to be learned (the token itself, not its predecessor).

    Returns:
      The loss and {"loss", "accuracy", "tokens"}.
    """
    logits = training_logits(params, tokens, config, fake_quantize)[:, :-1]
    targets, mask = tokens[:, 1:], loss_mask[:, 1:]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    count = jnp.maximum(mask.sum(), 1.0)
    loss = jnp.sum((log_z - picked) * mask) / count
    correct = jnp.sum((jnp.argmax(logits, axis=-1) == targets) * mask) / count
    return loss, {"loss": loss, "accuracy": correct, "tokens": mask.sum()}
