"""Checkpoints to convert: names and shapes spelled out, a tiny model, and sparse 27B files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ninfer_jax.artifact import open_artifact
from ninfer_jax.checkpoint.safetensors import WORD_TYPES, write_safetensors

DEMO = Path(__file__).parents[2] / "ninfer_jax" / "demo" / "demo.ninfer"

TEXT: dict[str, Any] = {
    "hidden_size": 128,
    "vocab_size": 1024,
    "num_hidden_layers": 8,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_parameters": {"rope_type": "default", "mrope_section": [3, 3, 2]},
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 256,
    "mtp_num_hidden_layers": 1,
    "hidden_act": "silu",
}
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 128,
    "in_channels": 3,
}
DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "vocab_size": 1024,
    "num_target_layers": 8,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "sliding_window": 64,
    "dflash_config": {
        "target_layer_ids": [1, 4, 6],
        "mask_token_id": 5,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 8,
        "selector_top_k": 4,
    },
}
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def text_shapes(config: Mapping[str, Any], prefix: str) -> Shapes:
    """BF16 tensors of the text model, every fourth layer full attention."""
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    heads, head = config["linear_num_value_heads"], config["linear_value_head_dim"]
    values = heads * head
    yield f"{prefix}embed_tokens.weight", (vocabulary, width)
    yield f"{prefix}norm.weight", (width,)
    yield "lm_head.weight", (vocabulary, width)
    for layer in range(config["num_hidden_layers"]):
        base = f"{prefix}layers.{layer}."
        yield from block_shapes(config, base, layer % 4 == 3)
        if layer % 4 != 3:
            base += "linear_attn."
            yield f"{base}in_proj_qkv.weight", (2 * keys + values, width)
            yield f"{base}in_proj_z.weight", (values, width)
            yield f"{base}in_proj_a.weight", (heads, width)
            yield f"{base}in_proj_b.weight", (heads, width)
            yield f"{base}A_log", (heads,)
            yield f"{base}dt_bias", (heads,)
            channels = 2 * keys + values
            yield f"{base}conv1d.weight", (channels, 1, config["linear_conv_kernel_dim"])
            yield f"{base}norm.weight", (head,)
            yield f"{base}out_proj.weight", (width, values)


def block_shapes(config: Mapping[str, Any], base: str, attention: bool, gate: int = 2) -> Shapes:
    """What every decoder layer has, and attention with `gate` times its query rows."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    yield f"{base}input_layernorm.weight", (width,)
    yield f"{base}post_attention_layernorm.weight", (width,)
    yield f"{base}mlp.gate_proj.weight", (inner, width)
    yield f"{base}mlp.up_proj.weight", (inner, width)
    yield f"{base}mlp.down_proj.weight", (width, inner)
    if attention:
        queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
        yield f"{base}self_attn.q_proj.weight", (gate * queries, width)
        yield f"{base}self_attn.k_proj.weight", (keys, width)
        yield f"{base}self_attn.v_proj.weight", (keys, width)
        yield f"{base}self_attn.o_proj.weight", (width, queries)
        yield f"{base}self_attn.q_norm.weight", (head,)
        yield f"{base}self_attn.k_norm.weight", (head,)


def mtp_shapes(config: Mapping[str, Any]) -> Shapes:
    width = config["hidden_size"]
    yield "mtp.fc.weight", (width, 2 * width)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"mtp.{name}.weight", (width,)
    yield from block_shapes(config, "mtp.layers.0.", True)


def vision_shapes(config: Mapping[str, Any]) -> Shapes:
    width, inner = config["hidden_size"], config["intermediate_size"]
    base, side = "model.visual.", config["patch_size"]
    merged = width * config["spatial_merge_size"] ** 2
    patch = (width, 3, config["temporal_patch_size"], side, side)
    yield f"{base}patch_embed.proj.weight", patch
    yield f"{base}patch_embed.proj.bias", (width,)
    yield f"{base}pos_embed.weight", (config["num_position_embeddings"], width)
    for layer in range(config["depth"]):
        for name, rows, columns in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.linear_fc1", inner, width),
            ("mlp.linear_fc2", width, inner),
        ):
            yield f"{base}blocks.{layer}.{name}.weight", (rows, columns)
            yield f"{base}blocks.{layer}.{name}.bias", (rows,)
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            yield f"{base}blocks.{layer}.{name}", (width,)
    for name, rows in (("linear_fc1", merged), ("linear_fc2", config["out_hidden_size"])):
        yield f"{base}merger.{name}.weight", (rows, merged)
        yield f"{base}merger.{name}.bias", (rows,)
    yield f"{base}merger.norm.weight", (width,)
    yield f"{base}merger.norm.bias", (width,)


def dflash2_shapes(config: Mapping[str, Any]) -> Shapes:
    width, draft = config["hidden_size"], config["dflash_config"]
    taps, rank = draft["conv_kernel_size"], draft["selector_rank"]
    yield "fc.weight", (width, len(draft["target_layer_ids"]) * width)
    yield "hidden_norm.weight", (width,)
    yield "norm.weight", (width,)
    for layer in range(config["num_hidden_layers"]):
        yield from block_shapes(config, f"layers.{layer}.", True, gate=1)
        for side in ("attention_conv", "mlp_conv"):
            yield f"layers.{layer}.{side}.base_kernel", (2, taps, width)
            kernels = 2 * taps * width // draft["conv_group_size"]
            yield f"layers.{layer}.{side}.kernel_projection.weight", (kernels, width)
    yield "candidate_selector.hidden_projection.weight", (rank, width)
    yield "candidate_selector.predecessor_codebook", (config["vocab_size"], rank)
    yield "candidate_selector.successor_codebook", (config["vocab_size"], rank)


_FP8_MODULES = re.compile(
    r"(self_attn\.[qkvo]_proj|linear_attn\.(in_proj_qkv|in_proj_z|out_proj)|lm_head)\.weight$"
)


def quantised_entries(
    config: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(name, type, shape) of the text tensors of a compressed-tensors checkpoint.

    MLPs are NVFP4 up to the last eighth of the layers, other projections FP8.
    """
    late = config["num_hidden_layers"] * 7 // 8
    for name, shape in text_shapes(config, prefix):
        module = name.removesuffix(".weight")
        layer = re.search(r"layers\.(\d+)\.mlp", name)
        if layer is not None and int(layer[1]) < late:
            rows, columns = shape
            yield f"{module}.weight_packed", "U8", (rows, columns // 2)
            yield f"{module}.weight_scale", "F8_E4M3", (rows, columns // 16)
            yield f"{module}.weight_global_scale", "F32", (1,)
            yield f"{module}.input_global_scale", "F32", (1,)
        elif layer is not None or _FP8_MODULES.search(name):
            yield name, "F8_E4M3", shape
            yield f"{module}.weight_scale", "BF16", (shape[0], 1)
        else:
            yield name, "BF16", shape


def random_bf16(shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
        for name, shape in shapes
    }


def random_quantised(config: Mapping[str, Any], prefix: str, seed: int) -> dict[str, np.ndarray]:
    """Legal random words; gate and up of a layer share a divisor."""
    random, tensors = np.random.default_rng(seed), {}
    for name, dtype, shape in quantised_entries(config, prefix):
        if name.endswith("weight_packed"):
            tensors[name] = random.integers(0, 256, shape).astype(np.uint8)
        elif name.endswith("global_scale"):
            layer = int(re.search(r"layers\.(\d+)", name)[1])
            value = 100 + 2 * layer + ("down" in name) + (1000 if "input" in name else 0)
            tensors[name] = np.full(shape, value, np.float32)
        elif dtype == "F8_E4M3":
            legal = np.setdiff1d(np.arange(256), [0x7F, 0xFF])
            legal = legal[legal < 0x7F] if "scale" in name else legal
            words = random.choice(legal, shape).astype(np.uint8)
            tensors[name] = words.view(ml_dtypes.float8_e4m3fn)
        elif name.endswith("weight_scale"):
            tensors[name] = random.uniform(0.001, 1, shape).astype(ml_dtypes.bfloat16)
        else:
            tensors[name] = random.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
    return tensors


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], resources=None
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tensors)
    for name, data in (resources or {}).items():
        (folder / name).write_bytes(data)
    return folder


def demo_resources(vision: Mapping[str, Any] | None = VISION) -> dict[str, bytes]:
    """The tokenizer of the demo, and preprocessors that fit a vision config."""
    with open_artifact(DEMO) as demo:
        resources = {
            role: demo.resource("text", role) for role in demo.components["text"].resources
        }
    if vision is not None:
        geometry = {
            "patch_size": vision["patch_size"],
            "temporal_patch_size": vision["temporal_patch_size"],
            "merge_size": vision["spatial_merge_size"],
        }
        for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
            resources[name] = json.dumps(geometry).encode()
    return resources


def tiny_base(folder: Path, resources: Mapping[str, bytes] | None = None) -> Path:
    """A BF16 checkpoint with text, MTP and vision."""
    prefix = "model.language_model."
    tensors = random_bf16(text_shapes(TEXT, prefix), 1)
    tensors |= random_bf16(mtp_shapes(TEXT), 2) | random_bf16(vision_shapes(VISION), 3)
    config = {"text_config": TEXT, "vision_config": VISION}
    return write_checkpoint(folder, config, tensors, resources or demo_resources())


def tiny_quantised(folder: Path) -> Path:
    """The text of another checkpoint in words, without anything else."""
    tensors = random_quantised(TEXT, "model.language_model.", 4)
    return write_checkpoint(folder, {"text_config": TEXT}, tensors)


def tiny_dflash2(folder: Path) -> Path:
    return write_checkpoint(folder, DFLASH2, random_bf16(dflash2_shapes(DFLASH2), 5))


def tiny_frequencies(path: Path) -> Path:
    counts = np.random.default_rng(6).integers(0, 50, TEXT["vocab_size"])
    path.write_bytes(counts.astype("<i8").tobytes())
    return path


def write_sparse(
    folder: Path,
    config: Mapping[str, Any],
    entries: Iterator[tuple[str, str, tuple[int, ...]]],
    resources: Mapping[str, bytes] | None = None,
) -> Path:
    """A checkpoint whose data is a hole, but for scalars, which are 1."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header, offset, scalars = {}, 0, []
    for name, dtype, shape in entries:
        size = math.prod(shape) * WORD_TYPES[dtype].itemsize
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        if shape == (1,):
            scalars.append(offset)
        offset += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
        for begin in scalars:
            file.seek(8 + len(text) + begin)
            file.write(np.float32(1).tobytes())
    for name, data in (resources or {}).items():
        (folder / name).write_bytes(data)
    return folder
