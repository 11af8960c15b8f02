"""From the `config.json` of a checkpoint to the component configs of an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.config_rules import (
    check_text_config,
    check_vision_config,
)
from ninfer_jax.artifact.strict_json import parse_json
from ninfer_jax.checkpoint.from_huggingface.source_facts import (
    DFLASH2_FACTS,
    ROPE_FACTS,
    TEXT_FACTS,
    TEXT_ROPE_FACTS,
    VISION_FACTS,
    check_facts,
    merged_rope,
)
from ninfer_jax.errors import ArtifactError

MAXIMUM_LAYERS = 1 << 16

_TEXT_DIMENSIONS = (
    "hidden_size vocab_size num_hidden_layers max_position_embeddings num_attention_heads "
    "num_key_value_heads head_dim linear_num_key_heads linear_key_head_dim "
    "linear_num_value_heads linear_value_head_dim linear_conv_kernel_dim intermediate_size"
).split()
_VISION_DIMENSIONS = (
    "depth hidden_size intermediate_size num_heads patch_size temporal_patch_size "
    "spatial_merge_size num_position_embeddings"
).split()
_DFLASH2_DIMENSIONS = (
    "intermediate_size num_attention_heads num_key_value_heads head_dim num_hidden_layers "
    "max_position_embeddings"
).split()
_DRAFT_MEMBERS = (
    "target_layer_ids mask_token_id conv_kernel_size conv_group_size selector_rank selector_top_k"
).split()


class SourceConfig:
    """The `config.json` of a checkpoint directory.

    Attributes:
      root: the whole document.
      nested: whether the text config is a member `text_config`, which decides tensor names.
      text: the text config.
    """

    def __init__(self, folder: Path):
        """Read and check; `ArtifactError` names the file, the fact, found and expected."""
        self.path = folder / "config.json"
        self.root = _read(self.path)
        self.nested = isinstance(self.root.get("text_config"), dict)
        self.text: Mapping[str, Any] = self.root["text_config"] if self.nested else self.root
        self._where = f"{self.path}: {'text_config' if self.nested else 'config'}"
        check_facts(self.text, TEXT_FACTS, self._where)
        check_facts(self.root, TEXT_FACTS, f"{self.path}: config")

    @property
    def ties_embeddings(self) -> bool:
        """Whether the output head is the embedding."""
        return bool(self.text.get("tie_word_embeddings", self.root.get("tie_word_embeddings")))

    @property
    def promises(self) -> dict[str, str]:
        """Component -> the member that says that the model has it."""
        found = {}
        if self.text.get("mtp_num_hidden_layers"):
            found["mtp"] = "mtp_num_hidden_layers"
        if self.root.get("vision_config") is not None:
            found["vision"] = "vision_config"
        return found

    def text_component(self) -> dict[str, Any]:
        """The config of the `text` component."""
        where, source = self._where, self.text
        rope = merged_rope(source, where)
        check_facts(rope, TEXT_ROPE_FACTS, f"{where}.rope_parameters")
        sizes = _members(source, _TEXT_DIMENSIONS, where)
        layers = _layers(sizes["num_hidden_layers"], f"{where}.num_hidden_layers")
        config = {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "hidden_size": sizes["hidden_size"],
            "vocab_size": sizes["vocab_size"],
            # Embedding and head are always two objects of an artifact.
            "tie_word_embeddings": False,
            "num_hidden_layers": layers,
            "layer_types": _text_layer_types(source, layers, where),
            "max_position_embeddings": sizes["max_position_embeddings"],
            "rms_norm_eps": _binary32(source.get("rms_norm_eps", 1e-6), f"{where}.rms_norm_eps"),
            "num_attention_heads": sizes["num_attention_heads"],
            "num_key_value_heads": sizes["num_key_value_heads"],
            "head_dim": sizes["head_dim"],
            "rope_parameters": {
                "rope_theta": _binary32(rope.get("rope_theta", 1e7), f"{where}.rope_theta"),
                "partial_rotary_factor": _binary32(
                    rope.get("partial_rotary_factor", 0.25), f"{where}.partial_rotary_factor"
                ),
                **_members(rope, ["mrope_section"], f"{where}.rope_parameters"),
            },
            **{name: sizes[name] for name in _TEXT_DIMENSIONS if name.startswith("linear_")},
            "intermediate_size": sizes["intermediate_size"],
        }
        _located(self.path, check_text_config, config)
        return config

    def vision_component(self) -> dict[str, Any]:
        """The config of the `vision` component."""
        where = f"{self.path}: vision_config"
        source = self.root.get("vision_config")
        if not isinstance(source, dict):
            raise ArtifactError(f"{where} is missing, but the checkpoint has vision tensors")
        width = _members(self.text, ["hidden_size"], self._where)["hidden_size"]
        check_facts(source, VISION_FACTS | {"out_hidden_size": width}, where)
        config = {"model_type": "qwen3_5_vision", **_members(source, _VISION_DIMENSIONS, where)}
        _layers(config["depth"], f"{where}.depth")
        _located(self.path, check_vision_config, config)
        return config


def mtp_component() -> dict[str, Any]:
    """The config of the `mtp` component, which takes its dimensions from text."""
    return {"architectures": ["Qwen3_5MTP"]}


def dflash2_component(folder: Path, text: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the `dflash2` component from its own directory, for a target text config.

    `check_dflash2_config` is left to the caller, who knows how many tokens may be proposed.
    """
    path = folder / "config.json"
    source, where = _read(path), f"{path}: config"
    draft = source.get("dflash_config")
    draft = draft if isinstance(draft, dict) else {}
    target = {
        "hidden_size": text["hidden_size"],
        "vocab_size": text["vocab_size"],
        "num_target_layers": text["num_hidden_layers"],
    }
    check_facts(source, DFLASH2_FACTS | target, where)
    check_facts(draft, DFLASH2_FACTS | target, f"{where}.dflash_config")
    rope = merged_rope(source, where)
    check_facts(rope, ROPE_FACTS, f"{where}.rope_parameters")
    sizes = _members(source, _DFLASH2_DIMENSIONS, where)
    layers = _layers(sizes["num_hidden_layers"], f"{where}.num_hidden_layers")
    kinds = _draft_layer_types(source, layers, where)
    config = {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "intermediate_size": sizes["intermediate_size"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_key_value_heads": sizes["num_key_value_heads"],
        "head_dim": sizes["head_dim"],
        "num_hidden_layers": layers,
        "rms_norm_eps": _binary32(source.get("rms_norm_eps", 1e-6), f"{where}.rms_norm_eps"),
        "rope_parameters": {
            "rope_theta": _binary32(rope.get("rope_theta", 1e7), f"{where}.rope_theta")
        },
        "max_position_embeddings": sizes["max_position_embeddings"],
        "layer_types": kinds,
    }
    if "sliding_attention" in kinds:
        config |= _members(source, ["sliding_window"], where)
    config["dflash_config"] = _members(source | draft, _DRAFT_MEMBERS, f"{where}.dflash_config")
    return config


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ArtifactError(f"{path.parent}: config.json is missing; is this a checkpoint?")
    document = parse_json(path.read_bytes(), str(path))
    if not isinstance(document, dict):
        raise ArtifactError(f"{path}: no JSON object")
    return document


def _members(source: Mapping[str, Any], names: list[str], where: str) -> dict[str, Any]:
    for name in names:
        if source.get(name) is None:
            raise ArtifactError(f"{where}: missing member {name!r}")
    return {name: source[name] for name in names}


def _layers(value: object, where: str) -> int:
    """A number of layers, which is going to be counted up to."""
    if type(value) is not int or not 0 < value <= MAXIMUM_LAYERS:
        raise ArtifactError(f"{where}: {str(value)[:80]}, expected 1..{MAXIMUM_LAYERS} layers")
    return value


def _text_layer_types(source: Mapping[str, Any], layers: int, where: str) -> object:
    """As given, or by interval. Interval 4, 8 layers: layers 3 and 7 are full attention."""
    if source.get("layer_types") is not None:
        return source["layer_types"]
    interval = _layers(source.get("full_attention_interval", 4), f"{where}.full_attention_interval")
    return [
        "linear_attention" if (layer + 1) % interval else "full_attention"
        for layer in range(layers)
    ]


def _draft_layer_types(source: Mapping[str, Any], layers: int, where: str) -> list[str]:
    """As given, or by window. Sliding from layer 1, 3 layers: full, sliding, sliding."""
    kinds = source.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list):
            raise ArtifactError(f"{where}.layer_types: {str(kinds)[:80]!a} is no array")
        return kinds
    first = source.get("max_window_layers", 28)
    if type(first) is not int:
        raise ArtifactError(f"{where}.max_window_layers: {str(first)[:80]!a} is not an integer")
    if not source.get("use_sliding_window", False):
        first = layers
    return ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]


def _binary32(value: object, where: str) -> float:
    if type(value) not in (int, float):
        raise ArtifactError(f"{where}: {str(value)[:80]!a} is not a number")
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _located(path: Path, check: Any, config: dict[str, Any]) -> None:
    """Run a config check; its message gets the path of the source."""
    try:
        check(config)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error.message}") from None
