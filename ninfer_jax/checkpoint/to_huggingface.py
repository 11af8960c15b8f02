"""Writes the text decoder as a Hugging Face `Qwen3_5ForCausalLM` checkpoint.

The transforms are the inverse of those in `docs/artifact.md` section 6. Needs NumPy only:
the file format of safetensors is 8 bytes of length, a JSON header, and the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.reader import Artifact
from ninfer_jax.checkpoint.names import Parameters, parameter_shapes
from ninfer_jax.model.config import TextConfig, text_config

_PLAIN_BLOCKS = {
    "attention/key": "self_attn.k_proj.weight",
    "attention/value": "self_attn.v_proj.weight",
    "attention/output": "self_attn.o_proj.weight",
    "attention/query_norm": "self_attn.q_norm.weight",
    "attention/key_norm": "self_attn.k_norm.weight",
    "gdn/z": "linear_attn.in_proj_z.weight",
    "gdn/a_projection": "linear_attn.in_proj_a.weight",
    "gdn/b_projection": "linear_attn.in_proj_b.weight",
    "gdn/a_log": "linear_attn.A_log",
    "gdn/dt_bias": "linear_attn.dt_bias",
    "gdn/norm": "linear_attn.norm.weight",
    "gdn/output": "linear_attn.out_proj.weight",
    "input_norm": "input_layernorm.weight",
    "post_attention_norm": "post_attention_layernorm.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
}
"""Parameters of a layer that are stored as they are."""


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
        for name, stored in _PLAIN_BLOCKS.items():
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


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes f32 tensors in the safetensors format, in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, values in tensors.items():
        if values.dtype != np.float32:
            raise ValueError(f"{name} is {values.dtype}, expected float32")
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for values in tensors.values():
            file.write(values.astype("<f4", copy=False).tobytes())


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
