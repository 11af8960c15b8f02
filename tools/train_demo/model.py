"""Geometry of the demo model: the Qwen3.5 dense architecture at 5.7 million parameters."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 256,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "max_position_embeddings": 65536,
    "rms_norm_eps": 9.999999974752427e-07,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_parameters": {
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
    },
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 1024,
}
"""`components.text.config` of the artifact."""
