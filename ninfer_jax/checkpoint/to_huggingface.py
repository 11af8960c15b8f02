"""Writes the text decoder as a Hugging Face `Qwen3_5ForCausalLM` checkpoint.

The transforms are the inverse of those in `docs/artifact.md` section 6. Needs NumPy only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.reader import Artifact
from ninfer_jax.checkpoint.names import Parameters, parameter_shapes
from ninfer_jax.checkpoint.safetensors import write_safetensors
from ninfer_jax.checkpoint.tensor_names import BLOCK_TENSORS
from ninfer_jax.model.config import TextConfig, text_config


def interleave_heads(query: np.ndarray, gate: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of `q_proj`: per head first its query rows, then its gate rows.

    Worked example, head width 2, 2 heads: query rows q0 q1 q2 q3 and gate rows g0 g1 g2 g3
    give q0 q1 g0 g1 q2 q3 g2 g3.
    """
    heads = (-1, head_dim, query.shape[1])
    both = np.concatenate([query.reshape(heads), gate.reshape(heads)], axis=1)
    return both.reshape(-1, query.shape[1])


def huggingface_tensors(config: TextConfig, parameters: Parameters) -> dict[str, np.ndarray]:
    """Tensors of the checkpoint, f32, from parameters by name."""
    tensors = {"model.embed_tokens.weight": parameters["text/token_embedding"]}
    for index, kind in enumerate(config.layer_types):
        source, target = f"text/layers/{index}", f"model.layers.{index}"
        for name, stored in BLOCK_TENSORS.items():
            if f"{source}/{name}" in parameters:
                tensors[f"{target}.{stored}"] = parameters[f"{source}/{name}"]
        if kind == "full_attention":
            query, gate = (parameters[f"{source}/attention/{part}"] for part in ("query", "gate"))
            tensors[f"{target}.self_attn.q_proj.weight"] = interleave_heads(
                query, gate, config.head_dim
            )
            continue
        tensors[f"{target}.linear_attn.in_proj_qkv.weight"] = np.concatenate(
            [parameters[f"{source}/gdn/{part}"] for part in ("query", "key", "value")]
        )
        # [taps, C] -> [C, 1, taps]
        kernel = parameters[f"{source}/gdn/convolution"].T[:, None]
        tensors[f"{target}.linear_attn.conv1d.weight"] = kernel
    tensors["model.norm.weight"] = parameters["text/final_norm"]
    tensors["lm_head.weight"] = parameters["text/output_head"]
    return {
        name: np.ascontiguousarray(values, dtype=np.float32) for name, values in tensors.items()
    }


def huggingface_config(component: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` of the checkpoint, from `components.text.config`."""
    rope = {"rope_type": "default", **component["rope_parameters"], "mrope_interleaved": True}
    return {
        **component,
        "rope_parameters": rope,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "dtype": "float32",
    }


def export_parameters(
    component: Mapping[str, Any], config: TextConfig, parameters: Parameters, folder: Path
) -> None:
    """Writes `config.json` and `model.safetensors` into `folder`, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.dumps(huggingface_config(component), indent=1)
    (folder / "config.json").write_text(settings + "\n", encoding="utf-8")
    write_safetensors(folder / "model.safetensors", huggingface_tensors(config, parameters))


def export_artifact(artifact: Artifact, folder: Path) -> None:
    """Exports the text decoder of an artifact; each number is what its stored words denote.

    Raises:
      ArtifactError: a parameter is missing or has another shape than the config says.
    """
    component = artifact.components["text"].config
    config = text_config(component, component["vocab_size"])
    parameters = {
        name: artifact.parameter(name, shape).decode()
        for name, shape in parameter_shapes(config).items()
    }
    export_parameters(component, config, parameters, folder)
