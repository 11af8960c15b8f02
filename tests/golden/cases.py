"""The cases whose outputs are stored beside this file: a config, weights, ids, positions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.checkpoint.synthetic import synthetic_parameters
from ninfer_jax.model.config import TextConfig, text_config

FOLDER = Path(__file__).parent

TINY: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "vocab_size": 512,
    "tie_word_embeddings": False,
    "num_hidden_layers": 8,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
    },
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 160,
}
"""Ratios of 3 between query and key/value heads find a wrong head mapping."""

DEMO: dict[str, Any] = TINY | {
    "hidden_size": 256,
    "vocab_size": 1024,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 8,
    "head_dim": 64,
    "rope_parameters": TINY["rope_parameters"] | {"partial_rotary_factor": 0.25},
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 32,
    "intermediate_size": 1024,
}
"""The geometry of the demo model."""

LINEAR_LAYER, FULL_LAYER = 1, 3
"""The layers whose mixer outputs are stored."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One stored comparison.

    Attributes:
      columns: tokens of the one sequence.
      separate_axes: three different rotary positions per token, instead of its index.
    """

    name: str
    component: dict[str, Any]
    seed: int
    columns: int
    separate_axes: bool

    @property
    def config(self) -> TextConfig:
        """Dimensions; every row of the vocabulary is addressable."""
        return text_config(self.component, self.component["vocab_size"])

    @property
    def path(self) -> Path:
        """The file with the oracle's outputs."""
        return FOLDER / f"{self.name}.npz"

    def parameters(self) -> dict[str, np.ndarray]:
        """The weights by parameter name."""
        return synthetic_parameters(self.config, self.seed)

    def ids(self) -> np.ndarray:
        """Token ids [1, T]."""
        random = np.random.RandomState(self.seed)
        return random.randint(0, self.component["vocab_size"], (1, self.columns))

    def positions(self) -> np.ndarray:
        """Rotary positions [3, 1, T] (time, height, width).

        Separate axes look like text around an image: time stands still while height and
        width walk over a grid. Worked example, tokens 10, 11, 12: (9, 9, 9), (9, 9, 10),
        (9, 9, 11); token 17: (9, 10, 9).
        """
        token = np.arange(self.columns)
        if not self.separate_axes:
            return np.broadcast_to(token, (3, 1, self.columns)).copy()
        inside = np.clip(token - 10, 0, 41)
        time = np.where(token < 10, token, np.where(token < 52, 9, token + 20))
        height = np.where((token >= 10) & (token < 52), 9 + inside // 7, time)
        width = np.where((token >= 10) & (token < 52), 9 + inside % 7, time)
        return np.stack([time, height, width])[:, None]


CASES = (
    Case("tiny_text", TINY, seed=1, columns=70, separate_axes=False),
    Case("tiny_three_axes", TINY, seed=2, columns=70, separate_axes=True),
    Case("demo_text", DEMO, seed=3, columns=24, separate_axes=False),
)
"""70 columns: more than one chunk of the delta rule."""
