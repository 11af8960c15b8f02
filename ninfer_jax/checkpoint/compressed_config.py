"""`config.json` of a compressed-tensors export, from the component configs of an artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_jax.artifact.formats import FP8, NVFP4
from ninfer_jax.artifact.grouped import GROUPED
from ninfer_jax.checkpoint.to_huggingface import huggingface_config

Config = Mapping[str, Any]

_NVFP4_SCHEME = {
    "format": "nvfp4-pack-quantized",
    "weights": {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
        "symmetric": True,
        "dynamic": False,
    },
}
_NVFP4_OPERAND = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
    "dynamic": "local",
}
_FP8_SCHEME = {
    "format": "float-quantized",
    "weights": {
        "num_bits": 8,
        "type": "float",
        "strategy": "channel",
        "symmetric": True,
        "dynamic": False,
    },
}
_FP8_OPERAND = {
    "num_bits": 8,
    "type": "float",
    "strategy": "token",
    "symmetric": True,
    "dynamic": True,
}


def model_config(configs: Mapping[str, Config], quantization: Config) -> dict[str, Any]:
    """The config of the target model; text stands alone when there is no vision.

    `quantization` becomes `quantization_config`; `{}` leaves it out.
    """
    text = huggingface_config(configs["text"]) | {"dtype": "bfloat16"}
    if "mtp" in configs:
        text |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    extra = {"quantization_config": quantization} if quantization else {}
    if "vision" not in configs:
        return text | extra
    vision = {
        **configs["vision"],
        "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "deepstack_visual_indexes": [],
        "out_hidden_size": text["hidden_size"],
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
        **extra,
    }


def drafter_config(dflash2: Config, text: Config) -> dict[str, Any]:
    """The config of the DFlash2 drafter, in its own directory."""
    return {
        **dflash2,
        "hidden_size": text["hidden_size"],
        "vocab_size": text["vocab_size"],
        "num_target_layers": text["num_hidden_layers"],
        "hidden_act": "silu",
        "attention_bias": False,
        "is_causal": False,
        "dtype": "bfloat16",
    }


def _integer_scheme(format: str) -> dict[str, Any]:
    return {
        "format": "pack-quantized",
        "weights": {
            "num_bits": GROUPED[format].bits,
            "type": "int",
            "strategy": "group",
            "group_size": GROUPED[format].group,
            "symmetric": True,
            "dynamic": False,
        },
    }


def quantization_config(
    modules: Mapping[str, str], calibrated: Sequence[str], plain: Sequence[str]
) -> dict[str, Any]:
    """`quantization_config` for quantised modules; `{}` when there are none.

    Args:
      modules: module -> the format of its words.
      calibrated: NVFP4 modules that have an input divisor: their operand is quantised too.
      plain: linear modules that are not quantised.
    """
    groups: dict[str, Any] = {}
    four_bits = [name for name, format in modules.items() if format == NVFP4]
    schemes = [
        (_NVFP4_SCHEME, _NVFP4_OPERAND, [name for name in four_bits if name in set(calibrated)]),
        (_NVFP4_SCHEME, None, [name for name in four_bits if name not in set(calibrated)]),
        (_FP8_SCHEME, _FP8_OPERAND, [name for name, format in modules.items() if format == FP8]),
    ]
    for grouped in GROUPED:
        targets = [name for name, format in modules.items() if format == grouped]
        schemes.append((_integer_scheme(grouped), None, targets))
    for scheme, operand, targets in schemes:
        if targets:
            groups[f"group_{len(groups)}"] = {
                **scheme,
                "input_activations": operand,
                "output_activations": None,
                "targets": targets,
            }
    if not groups:
        return {}
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(plain),
    }
