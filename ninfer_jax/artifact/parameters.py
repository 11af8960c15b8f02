"""The logical parameters of Qwen3.8-27B: name, shape, mathematical inputs, and format by profile.

The order is that of a natively written version 3 file. Qwen3.6-27B has the same parameters; only
its `groupwise-int` vocabulary matrices are Q6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ninfer_jax.artifact.formats import FP8, NVFP4
from ninfer_jax.artifact.geometry import QWEN_27B, Geometry

COMPONENTS = ("text", "mtp", "vision", "dflash2", "proposal")
PROFILES = ("nvfp4", "groupwise-int")
CONVOLUTION_TAPS = 4

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


@cache
def model_parameters(
    components: tuple[str, ...] = COMPONENTS, geometry: Geometry = QWEN_27B
) -> tuple[Parameter, ...]:
    """Return the parameters of `components` of a model, in native order.

    The inputs of the output heads depend on which draft components are present.
    """
    selected = tuple(name for name in COMPONENTS if name in components)
    drafters = tuple(f"{name}/final_hidden" for name in ("mtp", "dflash2") if name in selected)
    build = {"text": _text, "mtp": _mtp, "vision": _vision, "dflash2": _dflash2}
    parameters: list[Parameter] = []
    for component in selected:
        is_proposal = component == "proposal"
        rows = _proposal(geometry, drafters) if is_proposal else build[component](geometry)
        for name, shape, role, *inputs in rows:
            parameters.append(Parameter(name, component, shape, role, tuple(inputs)))
    return tuple(
        Parameter(p.name, p.component, p.shape, p.role, p.inputs + drafters)
        if p.name == "text/output_head"
        else p
        for p in parameters
    )


Rows = Iterator[tuple]


def _text(geometry: Geometry) -> Rows:
    width = geometry.width
    table = (geometry.vocabulary_rows, width)
    yield "text/token_embedding", table, "vocabulary"
    yield "text/output_head", table, "vocabulary", "text/final_hidden"
    yield "text/final_norm", (width,), "plain"
    for layer in range(geometry.layers):
        mlp = "mlp" if layer < geometry.nvfp4_mlp_layers else "late_mlp"
        roles = ("mixer_coarse", "mixer_fine", f"{mlp}_coarse", f"{mlp}_fine")
        mixer = _attention if is_attention_layer(layer) else _gated_deltanet
        yield from _block(geometry, f"text/layers/{layer}", mixer, roles)


def is_attention_layer(layer: int) -> bool:
    """Text layers 3, 7, ..., 63 are full attention; the others are gated DeltaNet."""
    return layer % 4 == 3


def _block(geometry: Geometry, block: str, mixer, roles: tuple[str, str, str, str]) -> Rows:
    width, mlp_width = geometry.width, geometry.mlp_width
    coarse, fine, mlp_coarse, mlp_fine = roles
    yield f"{block}/input_norm", (width,), "plain"
    yield from mixer(geometry, block, coarse, fine)
    yield f"{block}/post_attention_norm", (width,), "plain"
    for name in ("gate", "up"):
        yield (
            f"{block}/mlp/{name}",
            (mlp_width, width),
            mlp_coarse,
            f"{block}/ffn_input",
        )
    yield f"{block}/mlp/down", (width, mlp_width), mlp_fine, f"{block}/mlp/product"


def _attention(geometry: Geometry, block: str, coarse: str, fine: str) -> Rows:
    width = geometry.width
    queries = geometry.heads * geometry.head_width
    keys = geometry.key_value_heads * geometry.head_width
    source = f"{block}/mixer_input"
    for name, rows, role in (
        ("query", queries, coarse),
        ("gate", queries, fine),
        ("key", keys, coarse),
        ("value", keys, fine),
    ):
        yield f"{block}/attention/{name}", (rows, width), role, source
    yield f"{block}/attention/query_norm", (geometry.head_width,), "plain"
    yield f"{block}/attention/key_norm", (geometry.head_width,), "plain"
    yield (
        f"{block}/attention/output",
        (width, queries),
        fine,
        f"{block}/attention/gated_output",
    )


def _gated_deltanet(geometry: Geometry, block: str, coarse: str, fine: str) -> Rows:
    width, heads = geometry.width, geometry.linear_value_heads
    keys = geometry.linear_key_heads * geometry.linear_key_width
    values = heads * geometry.linear_value_width
    source = f"{block}/mixer_input"
    yield f"{block}/gdn/a_log", (heads,), "scalar"
    yield f"{block}/gdn/dt_bias", (heads,), "scalar"
    yield f"{block}/gdn/convolution", (CONVOLUTION_TAPS, 2 * keys + values), "plain"
    for name, rows, role in (
        ("a_projection", heads, "plain"),
        ("b_projection", heads, "plain"),
        ("query", keys, coarse),
        ("key", keys, coarse),
        ("value", values, fine),
        ("z", values, fine),
    ):
        yield f"{block}/gdn/{name}", (rows, width), role, source
    yield f"{block}/gdn/norm", (geometry.linear_value_width,), "plain"
    yield f"{block}/gdn/output", (width, values), fine, f"{block}/gdn/gated_output"


def _mtp(geometry: Geometry) -> Rows:
    width = geometry.width
    yield "mtp/input_projection", (width, 2 * width), "draft", "mtp/stem_input"
    for name in ("embedding_norm", "hidden_norm", "final_norm"):
        yield f"mtp/{name}", (width,), "plain"
    yield from _block(geometry, "mtp/layers/0", _attention, ("draft",) * 4)


def _vision(geometry: Geometry) -> Rows:
    tower = geometry.vision
    width, mlp_width, merged = tower.width, tower.mlp_width, tower.merged_width
    yield "vision/patch_embedding", (width, tower.patch_columns), "patches", "vision/patch_input"
    yield "vision/patch_embedding_bias", (width,), "plain"
    yield "vision/position_embedding", (tower.positions, width), "plain"
    for layer in range(tower.layers):
        block = f"vision/layers/{layer}"
        for name in ("norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias"):
            yield f"{block}/{name}", (width,), "plain"
        for name, rows, columns, role, source in (
            ("attention/query", width, width, "coarse", "attention_input"),
            ("attention/key", width, width, "coarse", "attention_input"),
            ("attention/value", width, width, "coarse", "attention_input"),
            ("attention/output", width, width, "fine", "attention_output"),
            ("mlp/fc1", mlp_width, width, "coarse", "mlp_input"),
            ("mlp/fc2", width, mlp_width, "fine", "mlp_activation"),
        ):
            yield f"{block}/{name}", (rows, columns), role, f"{block}/{source}"
            yield f"{block}/{name}_bias", (rows,), "plain"
    yield "vision/merger/norm_weight", (width,), "plain"
    yield "vision/merger/norm_bias", (width,), "plain"
    yield "vision/merger/fc1", (merged, merged), "draft", "vision/merger/input"
    yield "vision/merger/fc1_bias", (merged,), "plain"
    yield "vision/merger/fc2", (geometry.width, merged), "draft", "vision/merger/activation"
    yield "vision/merger/fc2_bias", (geometry.width,), "plain"


def _dflash2(geometry: Geometry) -> Rows:
    width, draft = geometry.width, geometry.draft
    queries = draft.heads * draft.head_width
    keys = draft.key_value_heads * draft.head_width
    # Two sides (prepare, finish), each with a kernel for every group of channels.
    kernels = 2 * draft.convolution_taps * width // draft.convolution_group
    features = (width, len(draft.target_layers) * width)
    yield "dflash2/feature_projection", features, "draft", "dflash2/target_features"
    yield "dflash2/context_norm", (width,), "plain"
    yield "dflash2/final_norm", (width,), "plain"
    for layer in range(draft.layers):
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
        yield f"{block}/attention/query_norm", (draft.head_width,), "plain"
        yield f"{block}/attention/key_norm", (draft.head_width,), "plain"
        yield (
            f"{block}/attention/output",
            (width, queries),
            "draft",
            f"{block}/attention_output",
        )
        for name in ("gate", "up"):
            yield (
                f"{block}/mlp/{name}",
                (draft.mlp_width, width),
                "draft",
                f"{block}/mlp_input",
            )
        yield f"{block}/mlp/down", (width, draft.mlp_width), "draft", f"{block}/mlp_product"
        for side in ("attention_conv", "mlp_conv"):
            yield f"{block}/{side}/base_kernel", (2, draft.convolution_taps, width), "plain"
            source = f"{block}/{side}_input"
            yield f"{block}/{side}/kernel_projection", (kernels, width), "plain", source
    selector = "dflash2/candidate_selector"
    codebook = (geometry.vocabulary_rows, draft.selector_rank)
    final = "dflash2/final_hidden"
    yield f"{selector}/hidden_projection", (draft.selector_rank, width), "plain", final
    yield f"{selector}/predecessor_codebook", codebook, "plain"
    yield f"{selector}/successor_codebook", codebook, "plain"


def _proposal(geometry: Geometry, drafters: tuple[str, ...]) -> Rows:
    rows = geometry.proposal_rows
    yield "proposal/head", (rows, geometry.width), "coarse", *drafters
    yield "proposal/token_ids", (rows,), "token_ids"
