"""Object names of versions 1 and 2, and the logical parameters whose rows they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ninfer_jax.artifact.geometry import QWEN_27B, Geometry
from ninfer_jax.artifact.parameters import COMPONENTS, is_attention_layer, model_parameters

# Suffix of a fused parent -> members, first rows first.
FUSED_SUFFIXES: dict[str, tuple[str, ...]] = {
    "attention/query_key": ("query", "key"),
    "attention/gate_value": ("gate", "value"),
    "attention/query_key_gate_value": ("query", "key", "gate", "value"),
    "gdn/query_key": ("query", "key"),
    "gdn/value_z": ("value", "z"),
    "gdn/query_key_value_z": ("query", "key", "value", "z"),
    "gdn/a_b_projection": ("a_projection", "b_projection"),
    "mlp/gate_up": ("gate", "up"),
    "attention/qkv": ("query", "key", "value"),
    "attention/qkv_bias": ("query_bias", "key_bias", "value_bias"),
    "attention/query_key_value": ("query", "key", "value"),
}

# Site of an input divisor -> the parameters whose uses it serves.
DIVISOR_SUFFIXES: dict[str, tuple[str, ...]] = {
    "attention/input_projection": ("query", "key", "gate", "value"),
    "attention/output_projection": ("output",),
    "gdn/input_projection": ("query", "key", "value", "z"),
    "gdn/output_projection": ("output",),
    "mlp/gate_up_projection": ("gate", "up"),
    "mlp/down_projection": ("down",),
}

VISION_RESOURCES = ("preprocessor_config.json", "video_preprocessor_config.json")
TEXT_RESOURCES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)

_SINGLE_RENAMES = {
    "text/draft_head": "proposal/head",
    "text/draft_head_token_ids": "proposal/token_ids",
    "vision/merger/norm/weight": "vision/merger/norm_weight",
    "vision/merger/norm/bias": "vision/merger/norm_bias",
}


@dataclass(frozen=True)
class Share:
    """Rows `[begin, end)` of a parent that are one parameter; the whole parent when `end` is None.

    Rows are those of the first axis: elements of a rank-1 parent.
    """

    parameter: str
    begin: int = 0
    end: int | None = None


@cache
def legacy_objects(geometry: Geometry = QWEN_27B) -> dict[str, tuple[Share, ...]]:
    """Return every tensor name of versions 1 and 2 -> the parameters it holds.

    Names of both profiles are present: an artifact has either the wide or the narrow parents.
    """
    objects: dict[str, tuple[Share, ...]] = {}
    shapes = {
        parameter.name: parameter.shape for parameter in model_parameters(COMPONENTS, geometry)
    }
    for name in shapes:
        objects[_legacy_name(name)] = (Share(name),)
    for legacy, block, suffix in _fused_sites(geometry):
        group = suffix.split("/")[0]
        shares, begin = [], 0
        for member in FUSED_SUFFIXES[suffix]:
            name = f"{block}/{group}/{member}"
            end = begin + shapes[name][0]
            shares.append(Share(name, begin, end))
            if block.startswith("dflash2/") and member in ("key", "value"):
                shares.append(Share(f"{block}/{group}/context_{member}", begin, end))
            objects.pop(_legacy_name(name), None)
            objects.pop(_legacy_name(f"{block}/{group}/context_{member}"), None)
            begin = end
        objects[f"{legacy}/{suffix}"] = tuple(shares)
    # The A and B projections occur fused and single.
    for name in shapes:
        if name.endswith(("/gdn/a_projection", "/gdn/b_projection")):
            objects[name] = (Share(name),)
    return objects


@cache
def legacy_divisors(geometry: Geometry = QWEN_27B) -> dict[str, tuple[str, ...]]:
    """Return every input-divisor object of version 2 -> the parameters whose uses refer to it."""
    divisors = {}
    for layer in range(geometry.layers):
        block = f"text/layers/{layer}"
        mixer = "attention" if is_attention_layer(layer) else "gdn"
        for suffix, members in DIVISOR_SUFFIXES.items():
            group, _ = suffix.split("/")
            if group in (mixer, "mlp"):
                divisors[f"{block}/{suffix}/input_scale_divisor"] = tuple(
                    f"{block}/{group}/{member}" for member in members
                )
    return divisors


def resource_owner(file_name: str) -> str:
    """Return the component that owns the resource `frontend/<file_name>`."""
    return "vision" if file_name in VISION_RESOURCES else "text"


def _legacy_name(parameter: str) -> str:
    for legacy, name in _SINGLE_RENAMES.items():
        if parameter == name:
            return legacy
    if parameter.startswith("mtp/layers/0/"):
        return parameter.replace("mtp/layers/0/", "mtp/layer/", 1)
    if parameter.startswith("vision/layers/"):
        for norm in ("norm1", "norm2"):
            parameter = parameter.replace(f"/{norm}_", f"/{norm}/", 1)
    return parameter


def _fused_sites(geometry: Geometry) -> Iterator[tuple[str, str, str]]:
    """Yield (legacy block, logical block, fused suffix) for every fused parent that may occur."""
    attention = (
        "attention/query_key",
        "attention/gate_value",
        "attention/query_key_gate_value",
    )
    recurrent = (
        "gdn/query_key",
        "gdn/value_z",
        "gdn/query_key_value_z",
        "gdn/a_b_projection",
    )
    for layer in range(geometry.layers):
        block = f"text/layers/{layer}"
        for suffix in (
            *(attention if is_attention_layer(layer) else recurrent),
            "mlp/gate_up",
        ):
            yield block, block, suffix
    for suffix in (*attention, "mlp/gate_up"):
        yield "mtp/layer", "mtp/layers/0", suffix
    for layer in range(geometry.vision.layers):
        block = f"vision/layers/{layer}"
        yield block, block, "attention/qkv"
        yield block, block, "attention/qkv_bias"
    for layer in range(geometry.draft.layers):
        block = f"dflash2/layers/{layer}"
        yield block, block, "attention/query_key_value"
        yield block, block, "mlp/gate_up"
