"""What the network fixes and a source config may contradict: each mismatch is one error.

A fact is checked where its key is present; the architecture itself says nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_jax.errors import ArtifactError

Config = Mapping[str, Any]

TEXT_FACTS: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
}
ROPE_FACTS: dict[str, object] = {"rope_type": "default", "type": "default", "factor": 1.0}
TEXT_ROPE_FACTS = ROPE_FACTS | {"mrope_interleaved": True}
VISION_FACTS: dict[str, object] = {
    "in_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "deepstack_visual_indexes": [],
}
DFLASH2_FACTS: dict[str, object] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "is_causal": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "sample_from_anchor": False,
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
}


def check_facts(config: Config, facts: Config, where: str) -> None:
    """Raise `ArtifactError` for the first fact that the config contradicts.

    `where` names the object in messages, such as `/models/x/config.json: text_config`.
    """
    for key, expected in facts.items():
        if key in config and not _same(config[key], expected):
            raise ArtifactError(
                f"{where}.{key}: {str(config[key])[:80]}, expected {expected}; "
                "this network is not supported"
            )


def _same(found: object, expected: object) -> bool:
    """Equal as JSON values: `true` is not 1, but 1 is 1.0."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    return found == expected


def merged_rope(config: Config, where: str) -> dict[str, Any]:
    """The RoPE fields of a config: `rope_parameters` and `rope_scaling`, or its own members.

    Raises `ArtifactError` when two places say different things.
    """
    merged: dict[str, Any] = {
        key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config
    }
    for member in ("rope_parameters", "rope_scaling"):
        fields = config.get(member)
        if fields is None:
            continue
        if not isinstance(fields, dict):
            raise ArtifactError(f"{where}.{member}: {str(fields)[:80]!a} is no object")
        for key, value in fields.items():
            if key in merged and not _same(merged[key], value):
                raise ArtifactError(
                    f"{where}.{member}.{key}: {str(value)[:80]}, but {str(merged[key])[:80]} "
                    "elsewhere; remove one of them"
                )
            merged[key] = value
    return merged
