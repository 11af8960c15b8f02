"""The logical parameters of a model: name, shape, mathematical inputs, and format by profile.

They follow from the component configs; the order is that of a natively written version 3 file.
`model_parameters` lists those of Qwen3.8-27B. Qwen3.6-27B has the same ones; only its
`groupwise-int` vocabulary matrices are Q6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ninfer_jax.artifact.formats import FP8, NVFP4
from ninfer_jax.artifact.geometry import QWEN_27B, Geometry
from ninfer_jax.artifact.published_configs import (
    dflash2_config,
    mtp_config,
    text_config,
    vision_config,
)

COMPONENTS = ("text", "mtp", "vision", "dflash2", "proposal")
PROFILES = ("nvfp4", "groupwise-int")

_Q4, _Q5, _Q6, _Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"

# Role of a parameter -> format. The first seven roles depend on the profile.
_COMMON = {
    "plain": "bf16",
    "scalar": "fp32",
    "token_ids": "int32",
    "coarse": _Q4,
    "fine": _Q5,
    "patches": _Q6,
    "draft": _Q8,
}
_BY_PROFILE = {
    "nvfp4": {
        "vocabulary": FP8,
        "mixer_coarse": FP8,
        "mixer_fine": FP8,
        "mlp_coarse": NVFP4,
        "mlp_fine": NVFP4,
        "late_mlp_coarse": FP8,
        "late_mlp_fine": FP8,
    },
    "groupwise-int": {
        "vocabulary": _Q8,
        "mixer_coarse": _Q4,
        "mixer_fine": _Q5,
        "mlp_coarse": _Q4,
        "mlp_fine": _Q5,
        "late_mlp_coarse": _Q4,
        "late_mlp_fine": _Q5,
    },
}


@dataclass(frozen=True)
class Parameter:
    """One logical parameter.

    Attributes:
      role: key of the format tables; see `parameter_format`.
      inputs: names of the mathematical inputs it multiplies; empty for norms, biases, tables.
    """

    name: str
    component: str
    shape: tuple[int, ...]
    role: str
    inputs: tuple[str, ...] = ()


def parameter_format(parameter: Parameter, profile: str, model_id: str = "qwen3.8-27b") -> str:
    """Return the version 3 format of a parameter in a profile of a published model."""
    if (model_id, profile, parameter.role) == (
        "qwen3.6-27b",
        "groupwise-int",
        "vocabulary",
    ):
        return _Q6
    return _COMMON.get(parameter.role) or _BY_PROFILE[profile][parameter.role]


Config = Mapping[str, Any]


@cache
def model_parameters(
    components: tuple[str, ...] = COMPONENTS, geometry: Geometry = QWEN_27B
) -> tuple[Parameter, ...]:
    """Return the parameters of `components` of a model, in native order."""
    configs: dict[str, Config] = {"text": text_config(geometry)}
    if "mtp" in components:
        configs["mtp"] = mtp_config()
    if "vision" in components:
        configs["vision"] = vision_config(geometry)
    if "dflash2" in components:
        configs["dflash2"] = dflash2_config(geometry)
    rows = geometry.proposal_rows if "proposal" in components else None
    return config_parameters(configs, rows, geometry.nvfp4_mlp_layers)


def config_parameters(
    configs: Mapping[str, Config], proposal_rows: int | None, nvfp4_mlp_layers: int | None = None
) -> tuple[Parameter, ...]:
    """Return the parameters that checked component configs describe, in native order.

    `configs` holds `text` and any of `mtp`, `vision`, `dflash2`. The inputs of the output heads
    depend on which draft components are present. Layers from `nvfp4_mlp_layers` on keep FP8 in
    their MLP in the nvfp4 profile; when None, the last eighth of all layers does (of 64, 56..63).
    """
    text = configs["text"]
    layers = text["num_hidden_layers"]
    early = layers - layers // 8 if nvfp4_mlp_layers is None else nvfp4_mlp_layers
    drafters = tuple(f"{name}/final_hidden" for name in ("mtp", "dflash2") if name in configs)
    tables = {"text": _text(text, early, drafters)}
    if "mtp" in configs:
        tables["mtp"] = _mtp(text)
    if "vision" in configs:
        tables["vision"] = _vision(configs["vision"], text["hidden_size"])
    if "dflash2" in configs:
        tables["dflash2"] = _dflash2(configs["dflash2"], text)
    if proposal_rows is not None:
        tables["proposal"] = _proposal(proposal_rows, text["hidden_size"], drafters)
    return tuple(
        Parameter(name, component, shape, role, tuple(inputs))
        for component, rows in tables.items()
        for name, shape, role, *inputs in rows
    )


Rows = Iterator[tuple]


def _text(config: Config, early: int, drafters: tuple[str, ...]) -> Rows:
    table = (config["vocab_size"], config["hidden_size"])
    yield "text/token_embedding", table, "vocabulary"
    yield "text/output_head", table, "vocabulary", "text/final_hidden", *drafters
    yield "text/final_norm", table[1:], "plain"
    for layer, kind in enumerate(config["layer_types"]):
        mlp = "mlp" if layer < early else "late_mlp"
        roles = ("mixer_coarse", "mixer_fine", f"{mlp}_coarse", f"{mlp}_fine")
        mixer = _attention if kind == "full_attention" else _gated_deltanet
        yield from _block(f"text/layers/{layer}", config, mixer, roles)


def is_attention_layer(layer: int) -> bool:
    """Text layers 3, 7, ..., 63 are full attention; the others are gated DeltaNet."""
    return layer % 4 == 3


def _block(block: str, config: Config, mixer, roles: tuple[str, str, str, str]) -> Rows:
    coarse, fine, mlp_coarse, mlp_fine = roles
    width, inner = config["hidden_size"], config["intermediate_size"]
    yield f"{block}/input_norm", (width,), "plain"
    yield from mixer(block, config, coarse, fine)
    yield f"{block}/post_attention_norm", (width,), "plain"
    for name in ("gate", "up"):
        yield f"{block}/mlp/{name}", (inner, width), mlp_coarse, f"{block}/ffn_input"
    yield f"{block}/mlp/down", (width, inner), mlp_fine, f"{block}/mlp/product"


def _attention(block: str, config: Config, coarse: str, fine: str) -> Rows:
    source, head, width = f"{block}/mixer_input", config["head_dim"], config["hidden_size"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    for name, rows, role in (
        ("query", queries, coarse),
        ("gate", queries, fine),
        ("key", keys, coarse),
        ("value", keys, fine),
    ):
        yield f"{block}/attention/{name}", (rows, width), role, source
    yield f"{block}/attention/query_norm", (head,), "plain"
    yield f"{block}/attention/key_norm", (head,), "plain"
    output = f"{block}/attention/gated_output"
    yield f"{block}/attention/output", (width, queries), fine, output


def _gated_deltanet(block: str, config: Config, coarse: str, fine: str) -> Rows:
    source, width = f"{block}/mixer_input", config["hidden_size"]
    heads = config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    taps = config["linear_conv_kernel_dim"]
    yield f"{block}/gdn/a_log", (heads,), "scalar"
    yield f"{block}/gdn/dt_bias", (heads,), "scalar"
    yield f"{block}/gdn/convolution", (taps, 2 * keys + values), "plain"
    for name, rows, role in (
        ("a_projection", heads, "plain"),
        ("b_projection", heads, "plain"),
        ("query", keys, coarse),
        ("key", keys, coarse),
        ("value", values, fine),
        ("z", values, fine),
    ):
        yield f"{block}/gdn/{name}", (rows, width), role, source
    yield f"{block}/gdn/norm", (config["linear_value_head_dim"],), "plain"
    yield f"{block}/gdn/output", (width, values), fine, f"{block}/gdn/gated_output"


def _mtp(text: Config) -> Rows:
    width = text["hidden_size"]
    yield "mtp/input_projection", (width, 2 * width), "draft", "mtp/stem_input"
    for name in ("embedding_norm", "hidden_norm", "final_norm"):
        yield f"mtp/{name}", (width,), "plain"
    yield from _block("mtp/layers/0", text, _attention, ("draft",) * 4)


def _vision(config: Config, text_width: int) -> Rows:
    width, inner = config["hidden_size"], config["intermediate_size"]
    # Red, green and blue; frames; rows; columns.
    patch = 3 * config["temporal_patch_size"] * config["patch_size"] ** 2
    merged = width * config["spatial_merge_size"] ** 2
    yield "vision/patch_embedding", (width, patch), "patches", "vision/patch_input"
    yield "vision/patch_embedding_bias", (width,), "plain"
    yield "vision/position_embedding", (config["num_position_embeddings"], width), "plain"
    for layer in range(config["depth"]):
        block = f"vision/layers/{layer}"
        for name in ("norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias"):
            yield f"{block}/{name}", (width,), "plain"
        for name, rows, columns, role, source in (
            ("attention/query", width, width, "coarse", "attention_input"),
            ("attention/key", width, width, "coarse", "attention_input"),
            ("attention/value", width, width, "coarse", "attention_input"),
            ("attention/output", width, width, "fine", "attention_output"),
            ("mlp/fc1", inner, width, "coarse", "mlp_input"),
            ("mlp/fc2", width, inner, "fine", "mlp_activation"),
        ):
            yield f"{block}/{name}", (rows, columns), role, f"{block}/{source}"
            yield f"{block}/{name}_bias", (rows,), "plain"
    yield "vision/merger/norm_weight", (width,), "plain"
    yield "vision/merger/norm_bias", (width,), "plain"
    yield "vision/merger/fc1", (merged, merged), "draft", "vision/merger/input"
    yield "vision/merger/fc1_bias", (merged,), "plain"
    yield "vision/merger/fc2", (text_width, merged), "draft", "vision/merger/activation"
    yield "vision/merger/fc2_bias", (text_width,), "plain"


def _dflash2(config: Config, text: Config) -> Rows:
    width, draft = text["hidden_size"], config["dflash_config"]
    head, inner = config["head_dim"], config["intermediate_size"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    taps = draft["conv_kernel_size"]
    # Row (side * taps + tap) * groups + group; the two sides are prepare and finish.
    kernels = 2 * taps * (width // draft["conv_group_size"])
    features = (width, len(draft["target_layer_ids"]) * width)
    yield "dflash2/feature_projection", features, "draft", "dflash2/target_features"
    yield "dflash2/context_norm", (width,), "plain"
    yield "dflash2/final_norm", (width,), "plain"
    for layer in range(config["num_hidden_layers"]):
        block = f"dflash2/layers/{layer}"
        yield f"{block}/input_norm", (width,), "plain"
        yield f"{block}/post_attention_norm", (width,), "plain"
        source, context = f"{block}/query_projection_input", "dflash2/context_input"
        for name, rows, origin in (
            ("query", queries, source),
            ("key", keys, source),
            ("context_key", keys, context),
            ("value", keys, source),
            ("context_value", keys, context),
        ):
            yield f"{block}/attention/{name}", (rows, width), "draft", origin
        yield f"{block}/attention/query_norm", (head,), "plain"
        yield f"{block}/attention/key_norm", (head,), "plain"
        output = f"{block}/attention_output"
        yield f"{block}/attention/output", (width, queries), "draft", output
        for name in ("gate", "up"):
            yield f"{block}/mlp/{name}", (inner, width), "draft", f"{block}/mlp_input"
        yield f"{block}/mlp/down", (width, inner), "draft", f"{block}/mlp_product"
        for side in ("attention_conv", "mlp_conv"):
            yield f"{block}/{side}/base_kernel", (2, taps, width), "plain"
            source = f"{block}/{side}_input"
            yield f"{block}/{side}/kernel_projection", (kernels, width), "plain", source
    selector, rank = "dflash2/candidate_selector", draft["selector_rank"]
    final, codebook = "dflash2/final_hidden", (text["vocab_size"], rank)
    yield f"{selector}/hidden_projection", (rank, width), "plain", final
    yield f"{selector}/predecessor_codebook", codebook, "plain"
    yield f"{selector}/successor_codebook", codebook, "plain"


def _proposal(rows: int, width: int, drafters: tuple[str, ...]) -> Rows:
    yield "proposal/head", (rows, width), "coarse", *drafters
    yield "proposal/token_ids", (rows,), "token_ids"
