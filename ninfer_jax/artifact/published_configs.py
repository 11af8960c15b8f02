"""Component configs of Qwen3.6-27B and Qwen3.8-27B, which files before version 3 do not carry."""

from __future__ import annotations

from typing import Any

# binary32 1e-6, printed as binary64.
_EPSILON = 9.999999974752427e-07


def text_config() -> dict[str, Any]:
    """Return the config of the `text` component."""
    kinds = (
        "linear_attention",
        "linear_attention",
        "linear_attention",
        "full_attention",
    )
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "vocab_size": 248320,
        "tie_word_embeddings": False,
        "num_hidden_layers": 64,
        "layer_types": list(kinds * 16),
        "max_position_embeddings": 262144,
        "rms_norm_eps": _EPSILON,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rope_parameters": {
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
        },
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "intermediate_size": 17408,
    }


def vision_config() -> dict[str, Any]:
    """Return the config of the `vision` component."""
    return {
        "model_type": "qwen3_5_vision",
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
    }


def mtp_config() -> dict[str, Any]:
    """Return the config of the `mtp` component."""
    return {"architectures": ["Qwen3_5MTP"]}


def dflash2_config() -> dict[str, Any]:
    """Return the config of the `dflash2` component."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "intermediate_size": 17408,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 5,
        "rms_norm_eps": _EPSILON,
        "rope_parameters": {"rope_theta": 10000000.0},
        "max_position_embeddings": 262144,
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048,
        "dflash_config": {
            "target_layer_ids": [5, 19, 33, 47, 61],
            "mask_token_id": 248070,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 256,
            "selector_top_k": 16,
        },
    }
