"""Engines over a random model whose weights do not fit into the processor's caches.

On such a model a step costs what reading its weights costs, as on a large model, so a round of
K + 1 columns should cost little more than a step. What is drafted is a record of the greedy
text with faults at chosen places: the acceptance is known and drafting costs nothing.
"""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ninfer_jax.engine.drafters import Drafter, DrafterWeights
from ninfer_jax.engine.engine import Engine
from ninfer_jax.engine.programs import DevicePrograms, ProgramShape, prefill_buckets
from ninfer_jax.engine.request import EngineInfo
from ninfer_jax.engine.rounds import ProgramModel, ProgramWeights
from ninfer_jax.model.config import TextConfig, text_config
from ninfer_jax.model.decoder import build_decoder
from ninfer_jax.model.training import build_training_model
from ninfer_jax.model.weights import as_weights
from ninfer_jax.quantization.kv import CODECS
from ninfer_jax.testing.replay_drafter import replay_drafter

DTYPE = jnp.dtype(jnp.bfloat16)
PROMPT, NEW_TOKENS, DRAFT_TOKENS = 64, 257, 7
ROUNDS = 8
GEOMETRY: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 1024,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
    "num_hidden_layers": 8,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rope_parameters": {
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [6, 5, 5],
    },
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 3072,
}
"""129 million parameters, 3 of 4 layers Gated DeltaNet as in the large model."""

IDS = 993
"""The ids of the demo's tokenizer, which spells the output."""


class Model:
    """The random weights, shared by all engines."""

    def __init__(self, geometry: dict[str, Any] = GEOMETRY, seed: int = 0):
        self.config: TextConfig = text_config(geometry, IDS)
        self.graph, specs = build_decoder(self.config, DTYPE)
        self.weights = as_weights(specs, build_training_model(self.config, seed), DTYPE)
        self.nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.weights))

    def programs(self, drafting: tuple[Drafter, DrafterWeights] | None) -> DevicePrograms:
        """Compiled programs for one request at a time."""
        drafter, weights = drafting or (None, None)
        pages = -(-(PROMPT + NEW_TOKENS) // 64)
        shape = ProgramShape(
            pages=pages,
            slots=1,
            max_context=64 * pages,
            # A product of one row rounds differently on CPU; a block has rows enough.
            lane_buckets=(1 if drafter else 2,),
            prefill_buckets=prefill_buckets(PROMPT),
            rounds_per_dispatch=ROUNDS,
        )
        model = ProgramModel(self.graph, CODECS["bf16"], drafter)
        device = jax.devices()[0]
        programs = DevicePrograms(
            self.config, model, ProgramWeights(self.weights, weights), shape, DTYPE, device
        )
        programs.compile(lambda line: None)
        return programs


def engine_over(programs: DevicePrograms) -> Engine:
    """An engine for one request."""
    shape = programs.shape
    info = EngineInfo(
        model_name="memory-bound",
        architecture="qwen3_5",
        max_context=shape.max_context,
        max_concurrency=1,
        kv_dtype="bf16",
        kv_capacity_tokens=64 * shape.pages,
        device="",
        spec=programs.drafting.backend,
        draft_tokens=programs.drafting.draft_tokens,
    )
    return Engine(info, programs, rounds_per_dispatch=ROUNDS)


def faulty_record(prompt: int, text: list[int], seed: int = 0) -> np.ndarray:
    """[1, positions]: `text` behind a prompt, with faults so that rounds accept 0 .. K drafts.

    Every count is equally likely, 3.5 in the mean, so a round gives 4.5 tokens.
    """
    rng = random.Random(seed)
    record = np.zeros(prompt + len(text), np.int32)
    record[prompt:] = text
    anchor = prompt
    while anchor + DRAFT_TOKENS < len(record):
        accepted = rng.randrange(DRAFT_TOKENS + 1)
        if accepted < DRAFT_TOKENS:
            record[anchor + accepted + 1] = (record[anchor + accepted + 1] + 1) % IDS
        anchor += accepted + 1
    return record[None]


def replaying(prompt: int, text: list[int]) -> tuple[Drafter, DrafterWeights]:
    """A drafter of that record."""
    return replay_drafter(faulty_record(prompt, text), DRAFT_TOKENS)
