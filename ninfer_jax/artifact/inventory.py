"""The stored objects of the published 27B artifacts, computed without an artifact at hand.

A memory planner reads formats and bytes from here; tests reproduce the published directories and
file sizes with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from ninfer_jax.artifact.codecs import encoded_bytes
from ninfer_jax.artifact.directory import ResourceObject, StoredObject, TensorObject
from ninfer_jax.artifact.formats import FORMATS, LEGACY_RAW_BYTES, TENSOR_ALIGNMENT
from ninfer_jax.artifact.geometry import GEOMETRIES, Geometry
from ninfer_jax.artifact.legacy import LegacyDirectory
from ninfer_jax.artifact.legacy_names import legacy_objects
from ninfer_jax.artifact.parameters import (
    COMPONENTS,
    is_attention_layer,
    model_parameters,
    parameter_format,
)

# File name -> bytes, in stored order.
QWEN38_RESOURCES = {
    "tokenizer.json": 12_809_320,
    "tokenizer_config.json": 17_928,
    "chat_template.jinja": 8_952,
    "generation_config.json": 202,
    "preprocessor_config.json": 390,
    "video_preprocessor_config.json": 385,
}
QWEN36_RESOURCES = QWEN38_RESOURCES | {
    "tokenizer.json": 12_807_982,
    "tokenizer_config.json": 16_718,
    "chat_template.jinja": 7_764,
}


@dataclass(frozen=True)
class InventoryTensor:
    """One tensor object as it is stored: fused parents count once."""

    name: str
    component: str
    format: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return encoded_bytes(self.format, self.shape)


@cache
def inventory(
    profile: str, components: tuple[str, ...] = COMPONENTS, model_id: str = "qwen3.8-27b"
) -> tuple[InventoryTensor, ...]:
    """Return the tensors of a published artifact, in the physical order of versions 1 and 2.

    `profile` is `nvfp4` or `groupwise-int`; `components` selects from `COMPONENTS`, text included.
    """
    geometry = GEOMETRIES[model_id]
    known = model_parameters(COMPONENTS, geometry)
    parameters = {parameter.name: parameter for parameter in known}
    holders = legacy_objects(geometry)
    tensors = []
    for name in _names(profile, components, geometry):
        if name.endswith("/input_scale_divisor"):
            tensors.append(InventoryTensor(name, "text", "fp32", ()))
            continue
        shares = holders[name]
        first = parameters[shares[0].parameter]
        shape = first.shape
        if shares[0].end is not None:
            shape = (max(share.end for share in shares), *shape[1:])
        format = parameter_format(first, profile, model_id)
        tensors.append(InventoryTensor(name, first.component, format, shape))
    return tuple(tensors)


def component_bytes(tensors: Iterable[InventoryTensor]) -> dict[str, int]:
    """Sum the encoded bytes by component, without alignment gaps."""
    totals: dict[str, int] = {}
    for tensor in tensors:
        totals[tensor.component] = totals.get(tensor.component, 0) + tensor.bytes
    return totals


def plan_legacy(
    tensors: Iterable[InventoryTensor],
    resources: Mapping[str, int],
    model_id: str,
    weights_id: str | None,
) -> LegacyDirectory:
    """Place resources (file name -> bytes), then tensors; version 1 when `weights_id` is None.

    Every object stands at the first offset its alignment permits.
    """
    objects: dict[str, StoredObject] = {}
    cursor = 0
    for file_name, size in resources.items():
        objects[f"frontend/{file_name}"] = ResourceObject(f"frontend/{file_name}", cursor, size)
        cursor += size
    for tensor in tensors:
        offset = -(-cursor // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        layout = FORMATS[tensor.format].layout
        objects[tensor.name] = TensorObject(
            tensor.name, tensor.shape, tensor.format, layout, offset, tensor.bytes
        )
        cursor = offset + tensor.bytes
    return LegacyDirectory(1 if weights_id is None else 2, model_id, weights_id, objects)


def legacy_text(directory: LegacyDirectory) -> bytes:
    """Return the compact JSON of a version 1 or 2 directory, byte for byte as published."""
    objects = []
    for stored in directory.objects.values():
        if isinstance(stored, ResourceObject):
            record = {"name": stored.id, "kind": "resource", "encoding": LEGACY_RAW_BYTES}
        else:
            spelling = FORMATS[stored.format]
            record = {
                "name": stored.id,
                "kind": "tensor",
                "shape": list(stored.shape),
                "format": spelling.legacy_name,
                "layout": spelling.legacy_layout,
            }
        objects.append(record | {"offset": stored.offset, "bytes": stored.bytes})
    document: dict[str, object] = {"model_id": directory.model_id}
    if directory.weights_id is not None:
        document = {"identity": document | {"weights_id": directory.weights_id}}
    document["objects"] = objects
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _names(profile: str, components: tuple[str, ...], geometry: Geometry) -> Iterator[str]:
    yield from _text_names(profile, geometry)
    if "proposal" in components:
        yield from ("text/draft_head", "text/draft_head_token_ids")
    if "mtp" in components:
        yield from _prefixed("mtp", "input_projection embedding_norm hidden_norm")
        yield from _prefixed(
            "mtp/layer",
            "input_norm attention/query_key_gate_value attention/query_norm attention/key_norm "
            "attention/output post_attention_norm mlp/gate_up mlp/down",
        )
        yield "mtp/final_norm"
    if "vision" in components:
        yield from _vision_names(geometry.vision.layers)
    if "dflash2" in components:
        yield from _dflash2_names(geometry.draft.layers)


def _text_names(profile: str, geometry: Geometry) -> Iterator[str]:
    wide = profile == "nvfp4"
    attention = (
        "attention/query_key_gate_value" if wide else "attention/query_key attention/gate_value"
    )
    projections = (
        "gdn/a_b_projection gdn/query_key_value_z"
        if wide
        else "gdn/a_projection gdn/b_projection gdn/query_key gdn/value_z"
    )
    yield "text/token_embedding"
    for layer in range(geometry.layers):
        if is_attention_layer(layer):
            mixer = f"{attention} attention/query_norm attention/key_norm attention/output"
        else:
            mixer = f"gdn/a_log gdn/dt_bias gdn/convolution {projections} gdn/norm gdn/output"
        divisors = wide and layer < geometry.nvfp4_mlp_layers
        mlp = (
            "mlp/gate_up mlp/gate_up_projection/input_scale_divisor "
            "mlp/down mlp/down_projection/input_scale_divisor"
            if divisors
            else "mlp/gate_up mlp/down"
        )
        yield from _prefixed(
            f"text/layers/{layer}", f"input_norm {mixer} post_attention_norm {mlp}"
        )
    yield from ("text/final_norm", "text/output_head")


def _vision_names(layers: int) -> Iterator[str]:
    yield from _prefixed("vision", "patch_embedding patch_embedding_bias position_embedding")
    for layer in range(layers):
        yield from _prefixed(
            f"vision/layers/{layer}",
            "attention/qkv attention/qkv_bias attention/output attention/output_bias "
            "mlp/fc1 mlp/fc1_bias mlp/fc2 mlp/fc2_bias "
            "norm1/weight norm1/bias norm2/weight norm2/bias",
        )
    yield from _prefixed("vision/merger", "fc1 fc1_bias fc2 fc2_bias norm/weight norm/bias")


def _dflash2_names(layers: int) -> Iterator[str]:
    yield from _prefixed("dflash2", "feature_projection context_norm")
    for layer in range(layers):
        yield from _prefixed(
            f"dflash2/layers/{layer}",
            "input_norm attention_conv/base_kernel attention_conv/kernel_projection "
            "attention/query_key_value attention/query_norm attention/key_norm attention/output "
            "post_attention_norm mlp_conv/base_kernel mlp_conv/kernel_projection "
            "mlp/gate_up mlp/down",
        )
    yield "dflash2/final_norm"
    yield from _prefixed(
        "dflash2/candidate_selector",
        "hidden_projection predecessor_codebook successor_codebook",
    )


def _prefixed(prefix: str, suffixes: str) -> Iterator[str]:
    return (f"{prefix}/{suffix}" for suffix in suffixes.split())
