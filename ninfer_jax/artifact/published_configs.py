"""Component configs of a geometry, which files before version 3 do not carry.

The default is that of Qwen3.6-27B and Qwen3.8-27B.
"""

from __future__ import annotations

from typing import Any

from ninfer_jax.artifact.geometry import QWEN_27B, Geometry

# binary32 1e-6, printed as binary64.
_EPSILON = 9.999999974752427e-07


def text_config(geometry: Geometry = QWEN_27B) -> dict[str, Any]:
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
        "hidden_size": geometry.width,
        "vocab_size": geometry.vocabulary_rows,
        "tie_word_embeddings": False,
        "num_hidden_layers": geometry.layers,
        "layer_types": [kinds[layer % 4] for layer in range(geometry.layers)],
        "max_position_embeddings": 262144,
        "rms_norm_eps": _EPSILON,
        "num_attention_heads": geometry.heads,
        "num_key_value_heads": geometry.key_value_heads,
        "head_dim": geometry.head_width,
        "rope_parameters": {
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": list(geometry.mrope_section),
        },
        "linear_num_key_heads": geometry.linear_key_heads,
        "linear_key_head_dim": geometry.linear_key_width,
        "linear_num_value_heads": geometry.linear_value_heads,
        "linear_value_head_dim": geometry.linear_value_width,
        "linear_conv_kernel_dim": 4,
        "intermediate_size": geometry.mlp_width,
    }


def vision_config(geometry: Geometry = QWEN_27B) -> dict[str, Any]:
    """Return the config of the `vision` component."""
    tower = geometry.vision
    return {
        "model_type": "qwen3_5_vision",
        "depth": tower.layers,
        "hidden_size": tower.width,
        "intermediate_size": tower.mlp_width,
        "num_heads": tower.heads,
        "patch_size": tower.patch,
        "temporal_patch_size": tower.temporal_patch,
        "spatial_merge_size": tower.merge,
        "num_position_embeddings": tower.positions,
    }


def mtp_config() -> dict[str, Any]:
    """Return the config of the `mtp` component."""
    return {"architectures": ["Qwen3_5MTP"]}


def dflash2_config(geometry: Geometry = QWEN_27B) -> dict[str, Any]:
    """Return the config of the `dflash2` component."""
    draft = geometry.draft
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "intermediate_size": draft.mlp_width,
        "num_attention_heads": draft.heads,
        "num_key_value_heads": draft.key_value_heads,
        "head_dim": draft.head_width,
        "num_hidden_layers": draft.layers,
        "rms_norm_eps": _EPSILON,
        "rope_parameters": {"rope_theta": 10000000.0},
        "max_position_embeddings": 262144,
        "layer_types": ["sliding_attention"] * draft.layers,
        "sliding_window": 2048,
        "dflash_config": {
            "target_layer_ids": list(draft.target_layers),
            "mask_token_id": draft.mask_token,
            "conv_kernel_size": draft.convolution_taps,
            "conv_group_size": draft.convolution_group,
            "selector_rank": draft.selector_rank,
            "selector_top_k": draft.selector_top_k,
        },
    }
