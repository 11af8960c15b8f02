"""Small random models, and a driver of the serving state for tests."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ninfer_jax.checkpoint.names import arrays_by_spec
from ninfer_jax.checkpoint.synthetic import synthetic_parameters
from ninfer_jax.model.compilation import compiler_options
from ninfer_jax.model.config import TextConfig, text_config
from ninfer_jax.model.decoder import Decoder, build_decoder, merge_decoder
from ninfer_jax.model.state import (
    DecoderState,
    Rows,
    StateShape,
    advanced_state,
    memories,
    state_spec,
    zero_state,
)
from ninfer_jax.model.weights import as_weights
from ninfer_jax.quantization.kv import CODECS
from tests.golden.cases import TINY

SMALL: dict[str, Any] = TINY | {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 64,
    "rope_parameters": TINY["rope_parameters"] | {"partial_rotary_factor": 0.25},
    "linear_num_value_heads": 16,
}
"""Both layer kinds in both orders, and a third of the compile time of `TINY`.

With whole vectors of heads and attention heads of 64, as every served model has them: on CPUs
with AVX-512 the compiler takes the sigmoid of a rest of a vector by other instructions, and its
library has another kernel for heads of 32 and more than 24 rows, which adds in another order.
Laws of equal bits are laws of such geometries."""

F32 = jnp.dtype(jnp.float32)

ADDRESSABLE = 500
"""Ids of the small models; 12 rows of the vocabulary are unaddressable."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder whose weights and activations have one type."""

    config: TextConfig
    graph: nnx.GraphDef
    specs: dict
    arrays: dict
    dtype: jnp.dtype = F32

    def arrays_as_jax(self) -> dict:
        """The f32 arrays on the device, one per spec."""
        return jax.device_put(self.arrays)

    @functools.cached_property
    def weights(self) -> dict:
        """The weight tree that programs take."""
        return as_weights(self.specs, self.arrays_as_jax(), self.dtype)

    def merge(self) -> Decoder:
        """The decoder as a module."""
        return merge_decoder(self.graph, self.weights)


def build_model(
    config: TextConfig, parameters: dict[str, np.ndarray], dtype: jnp.dtype = F32
) -> Model:
    """A model from parameters by name."""
    graph, specs = build_decoder(config, dtype)
    return Model(config, graph, specs, arrays_by_spec(specs, parameters), dtype)


@functools.cache
def small_model(seed: int = 0, dtype: jnp.dtype = F32) -> Model:
    """The shared small model."""
    config = text_config(SMALL, ADDRESSABLE)
    return build_model(config, synthetic_parameters(config, seed), dtype)


@functools.partial(
    jax.jit, static_argnames=("graph", "codec"), compiler_options=compiler_options("cpu")
)
def forward(graph, codec, weights, state, ids, rows, positions):
    """One call over the serving state: (logits of all columns, hidden, new state)."""
    decoder = merge_decoder(graph, weights)
    hidden, advanced, _ = decoder(ids, positions, memories(state, rows, codec))
    return decoder.logits(hidden), hidden, advanced_state(advanced)


class Driver:
    """A serving state with calls of fixed widths; pages and slots are named by the caller."""

    def __init__(
        self, model: Model, pages: int, slots: int, codec: str = "f32", state: DecoderState = None
    ):
        self.model, self.codec = model, CODECS[codec]
        shape = StateShape(pages, slots, self.codec, model.dtype)
        self.state = zero_state(state_spec(model.config, shape)) if state is None else state

    def call(
        self,
        ids: np.ndarray,
        slots: Sequence[int],
        tables: np.ndarray,
        start: Sequence[int],
        length: Sequence[int],
        fresh: Sequence[bool],
    ) -> np.ndarray:
        """Runs ids [B, T]; returns logits [B, T, V] and advances the state."""
        rows = Rows(
            slots=jnp.asarray(slots, jnp.int32),
            block_table=jnp.asarray(tables, jnp.int32),
            start=jnp.asarray(start, jnp.int32),
            length=jnp.asarray(length, jnp.int32),
            fresh=jnp.asarray(fresh, bool),
        )
        ids = jnp.asarray(ids, jnp.int32)
        logits, _, self.state = forward(
            self.model.graph,
            self.codec,
            self.model.weights,
            self.state,
            ids,
            rows,
            rows.positions(ids.shape[1]),
        )
        return np.asarray(logits)

    def feed(
        self, tokens: np.ndarray, slot: int, table: np.ndarray, pieces: Sequence[tuple[int, int]]
    ) -> np.ndarray:
        """Runs one sequence from its start in pieces of (live columns, width of the call).

        Returns the logits of all its columns, [n, V].
        """
        start, logits = 0, []
        for length, width in pieces:
            ids = np.zeros((1, width), np.int32)
            ids[0, :length] = tokens[start : start + length]
            out = self.call(ids, [slot], table[None], [start], [length], [start == 0])
            logits.append(out[0, :length])
            start += length
        return np.concatenate(logits)

    def remembered(self, slot: int, table: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """What the state holds of one sequence: live KV rows in order, S, and conv columns."""
        kept = {}
        for index, layer in enumerate(self.state.layers):
            if hasattr(layer, "keys"):
                for name, planes in (("keys", layer.keys), ("values", layer.values)):
                    for plane, values in planes.items():
                        pages = np.asarray(values)[table]  # [M, G, 64, X]
                        rows = np.moveaxis(pages, 1, 2).reshape(-1, *pages.shape[1::2])
                        kept[f"{index}/{name}/{plane}"] = rows[:length]
            else:
                kept[f"{index}/recurrent"] = np.asarray(layer.recurrent[slot])
                kept[f"{index}/convolution"] = np.asarray(layer.convolution[slot])
        return kept


def largest_difference(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """Largest absolute difference over all arrays of two equal structures."""
    assert first.keys() == second.keys()
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)
