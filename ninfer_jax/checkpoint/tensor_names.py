"""Where each parameter stands in a Hugging Face checkpoint: tensor, rows, and axes.

The one table for both directions (`docs/artifact.md` section 6). No number is scaled or shifted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ninfer_jax.artifact.parameters import Parameter

BLOCK_TENSORS = {
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
"""Parameters of a decoder layer that are stored as they are."""

_DRAFT_BLOCK_TENSORS = BLOCK_TENSORS | {
    "attention/query": "self_attn.q_proj.weight",
    "attention/context_key": "self_attn.k_proj.weight",
    "attention/context_value": "self_attn.v_proj.weight",
    "attention_conv/base_kernel": "attention_conv.base_kernel",
    "attention_conv/kernel_projection": "attention_conv.kernel_projection.weight",
    "mlp_conv/base_kernel": "mlp_conv.base_kernel",
    "mlp_conv/kernel_projection": "mlp_conv.kernel_projection.weight",
}

_VISION_TENSORS = {
    "patch_embedding": "patch_embed.proj.weight",
    "patch_embedding_bias": "patch_embed.proj.bias",
    "position_embedding": "pos_embed.weight",
    "merger/norm_weight": "merger.norm.weight",
    "merger/norm_bias": "merger.norm.bias",
    "merger/fc1": "merger.linear_fc1.weight",
    "merger/fc1_bias": "merger.linear_fc1.bias",
    "merger/fc2": "merger.linear_fc2.weight",
    "merger/fc2_bias": "merger.linear_fc2.bias",
    "attention/output": "attn.proj.weight",
    "attention/output_bias": "attn.proj.bias",
    "mlp/fc1": "mlp.linear_fc1.weight",
    "mlp/fc1_bias": "mlp.linear_fc1.bias",
    "mlp/fc2": "mlp.linear_fc2.weight",
    "mlp/fc2_bias": "mlp.linear_fc2.bias",
    "norm1_weight": "norm1.weight",
    "norm1_bias": "norm1.bias",
    "norm2_weight": "norm2.weight",
    "norm2_bias": "norm2.bias",
}

_SINGLE_TENSORS = {
    "mtp/input_projection": "mtp.fc.weight",
    "mtp/embedding_norm": "mtp.pre_fc_norm_embedding.weight",
    "mtp/hidden_norm": "mtp.pre_fc_norm_hidden.weight",
    "mtp/final_norm": "mtp.norm.weight",
    "dflash2/feature_projection": "fc.weight",
    "dflash2/context_norm": "hidden_norm.weight",
    "dflash2/final_norm": "norm.weight",
    "dflash2/candidate_selector/hidden_projection": "candidate_selector.hidden_projection.weight",
    "dflash2/candidate_selector/predecessor_codebook": "candidate_selector.predecessor_codebook",
    "dflash2/candidate_selector/successor_codebook": "candidate_selector.successor_codebook",
    # No published checkpoint has these two; an export carries a proposal head in them.
    "proposal/head": "proposal.head.weight",
    "proposal/token_ids": "proposal.token_ids",
}

PROPOSAL_TENSORS = ("proposal.head.weight", "proposal.token_ids")


@dataclass(frozen=True)
class Rows:
    """Rows `begin + i * stride + [0, length)` of a tensor, for i in `[0, count)`.

    Gate of 2 heads of width 2 in q0 q1 g0 g1 q2 q3 g2 g3: begin 2, length 2, stride 4, count 2,
    rows 2 3 6 7.
    """

    begin: int
    length: int
    stride: int = 0
    count: int = 1

    def select(self, begin: int, end: int) -> slice | np.ndarray:
        """Index of the chosen rows `[begin, end)`, counted among themselves."""
        if self.count == 1:
            return slice(self.begin + begin, self.begin + end)
        row = np.arange(begin, end)
        return self.begin + row // self.length * self.stride + row % self.length


@dataclass(frozen=True)
class ChosenRows:
    """Rows of a tensor in any order: those of the proposal head in `lm_head`."""

    rows: np.ndarray

    def select(self, begin: int, end: int) -> np.ndarray:
        """Index of the chosen rows `[begin, end)`, counted among themselves."""
        return self.rows[begin:end]


Axes = Literal["as stored", "taps first", "flat patches"]


@dataclass(frozen=True)
class Location:
    """Where a parameter is: a tensor, its full shape, the chosen rows, and what becomes of axes.

    `taps first` turns `[C, 1, taps]` into `[taps, C]`: out[t, c] = in[c, 0, t]. `flat patches`
    joins all axes behind the first, in C order.
    """

    tensor: str
    shape: tuple[int, ...]
    rows: Rows | ChosenRows | None = None
    axes: Axes = "as stored"


def text_prefix(nested: bool) -> str:
    """Prefix of the text tensors; `nested` when the source config has a `text_config`."""
    return "model.language_model." if nested else "model."


def locate(parameter: Parameter, configs: Mapping[str, Mapping[str, Any]], prefix: str) -> Location:
    """The location of a parameter that `config_parameters(configs, ...)` lists."""
    name, shape = parameter.name, parameter.shape
    single = _SINGLE_TENSORS | {
        "text/token_embedding": f"{prefix}embed_tokens.weight",
        "text/output_head": "lm_head.weight",
        "text/final_norm": f"{prefix}norm.weight",
    }
    if name in single:
        return Location(single[name], shape)
    component, layer, leaf = _split(name)
    if component == "vision":
        return _vision(layer, leaf, shape, configs["vision"])
    if component == "dflash2":
        return Location(f"layers.{layer}.{_DRAFT_BLOCK_TENSORS[leaf]}", shape)
    base = "mtp." if component == "mtp" else prefix
    return _block(f"{base}layers.{layer}.", leaf, shape, configs["text"])


def _split(name: str) -> tuple[str, str | None, str]:
    """`text/layers/3/mlp/up` -> text, 3, mlp/up; `vision/merger/fc1` -> vision, None, ..."""
    found = re.fullmatch(r"(\w+)/(?:layers/(\d+)/)?(.+)", name)
    assert found is not None, name
    return found.groups()


def _block(base: str, leaf: str, shape: tuple[int, ...], text: Mapping[str, Any]) -> Location:
    if leaf in ("attention/query", "attention/gate"):
        # Per head first its query rows, then its gate rows.
        head, heads = text["head_dim"], text["num_attention_heads"]
        begin = 0 if leaf == "attention/query" else head
        return Location(
            f"{base}self_attn.q_proj.weight",
            (2 * shape[0], shape[1]),
            Rows(begin, head, 2 * head, heads),
        )
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    joined = {"gdn/query": (0, keys), "gdn/key": (keys, keys), "gdn/value": (2 * keys, values)}
    if leaf in joined:
        return Location(
            f"{base}linear_attn.in_proj_qkv.weight",
            (2 * keys + values, shape[1]),
            Rows(*joined[leaf]),
        )
    if leaf == "gdn/convolution":
        taps, channels = shape
        tensor = f"{base}linear_attn.conv1d.weight"
        return Location(tensor, (channels, 1, taps), axes="taps first")
    return Location(base + BLOCK_TENSORS[leaf], shape)


def _vision(
    layer: str | None, leaf: str, shape: tuple[int, ...], vision: Mapping[str, Any]
) -> Location:
    base = "model.visual." if layer is None else f"model.visual.blocks.{layer}."
    third = re.fullmatch(r"attention/(query|key|value)(_bias)?", leaf)
    if third is not None:
        begin = ("query", "key", "value").index(third[1]) * shape[0]
        tensor = "attn.qkv.bias" if third[2] else "attn.qkv.weight"
        return Location(base + tensor, (3 * shape[0], *shape[1:]), Rows(begin, shape[0]))
    if leaf == "patch_embedding":
        side = vision["patch_size"]
        full = (shape[0], 3, vision["temporal_patch_size"], side, side)
        return Location(base + _VISION_TENSORS[leaf], full, axes="flat patches")
    return Location(base + _VISION_TENSORS[leaf], shape)
