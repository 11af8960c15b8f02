"""The logical parameters of Qwen3.8-27B: name, shape, mathematical inputs, and format by profile.

The order is that of a natively written version 3 file. Qwen3.6-27B has the same parameters; only
its `groupwise-int` vocabulary matrices are Q6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ninfer_jax.artifact.formats import FP8, NVFP4

COMPONENTS = ("text", "mtp", "vision", "dflash2", "proposal")
PROFILES = ("nvfp4", "groupwise-int")
TEXT_LAYERS = 64
VISION_LAYERS = 27
DFLASH2_LAYERS = 5
PROPOSAL_ROWS = 131072
VOCABULARY_ROWS = 248320
PUBLIC_TOKENS = 248077
WIDTH = 5120
MLP_WIDTH = 17408
# Layers 56..63 keep FP8 in their MLP in the nvfp4 profile.
NVFP4_MLP_LAYERS = 56

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
def model_parameters(components: tuple[str, ...] = COMPONENTS) -> tuple[Parameter, ...]:
    """Return the parameters of `components`, in native order.

    The inputs of the output heads depend on which draft components are present.
    """
    selected = tuple(name for name in COMPONENTS if name in components)
    drafters = tuple(f"{name}/final_hidden" for name in ("mtp", "dflash2") if name in selected)
    build = {"text": _text, "mtp": _mtp, "vision": _vision, "dflash2": _dflash2}
    parameters: list[Parameter] = []
    for component in selected:
        rows = _proposal(drafters) if component == "proposal" else build[component]()
        for name, shape, role, *inputs in rows:
            parameters.append(Parameter(name, component, shape, role, tuple(inputs)))
    return tuple(
        Parameter(p.name, p.component, p.shape, p.role, p.inputs + drafters)
        if p.name == "text/output_head"
        else p
        for p in parameters
    )


Rows = Iterator[tuple]


def _text() -> Rows:
    table = (VOCABULARY_ROWS, WIDTH)
    yield "text/token_embedding", table, "vocabulary"
    yield "text/output_head", table, "vocabulary", "text/final_hidden"
    yield "text/final_norm", (WIDTH,), "plain"
    for layer in range(TEXT_LAYERS):
        mlp = "mlp" if layer < NVFP4_MLP_LAYERS else "late_mlp"
        roles = ("mixer_coarse", "mixer_fine", f"{mlp}_coarse", f"{mlp}_fine")
        mixer = _attention if is_attention_layer(layer) else _gated_deltanet
        yield from _block(f"text/layers/{layer}", mixer, roles)


def is_attention_layer(layer: int) -> bool:
    """Text layers 3, 7, ..., 63 are full attention; the others are gated DeltaNet."""
    return layer % 4 == 3


def _block(block: str, mixer, roles: tuple[str, str, str, str]) -> Rows:
    coarse, fine, mlp_coarse, mlp_fine = roles
    yield f"{block}/input_norm", (WIDTH,), "plain"
    yield from mixer(block, coarse, fine)
    yield f"{block}/post_attention_norm", (WIDTH,), "plain"
    for name in ("gate", "up"):
        yield (
            f"{block}/mlp/{name}",
            (MLP_WIDTH, WIDTH),
            mlp_coarse,
            f"{block}/ffn_input",
        )
    yield f"{block}/mlp/down", (WIDTH, MLP_WIDTH), mlp_fine, f"{block}/mlp/product"


def _attention(block: str, coarse: str, fine: str) -> Rows:
    source = f"{block}/mixer_input"
    for name, rows, role in (
        ("query", 6144, coarse),
        ("gate", 6144, fine),
        ("key", 1024, coarse),
        ("value", 1024, fine),
    ):
        yield f"{block}/attention/{name}", (rows, WIDTH), role, source
    yield f"{block}/attention/query_norm", (256,), "plain"
    yield f"{block}/attention/key_norm", (256,), "plain"
    yield (
        f"{block}/attention/output",
        (WIDTH, 6144),
        fine,
        f"{block}/attention/gated_output",
    )


def _gated_deltanet(block: str, coarse: str, fine: str) -> Rows:
    source = f"{block}/mixer_input"
    yield f"{block}/gdn/a_log", (48,), "scalar"
    yield f"{block}/gdn/dt_bias", (48,), "scalar"
    yield f"{block}/gdn/convolution", (4, 10240), "plain"
    for name, rows, role in (
        ("a_projection", 48, "plain"),
        ("b_projection", 48, "plain"),
        ("query", 2048, coarse),
        ("key", 2048, coarse),
        ("value", 6144, fine),
        ("z", 6144, fine),
    ):
        yield f"{block}/gdn/{name}", (rows, WIDTH), role, source
    yield f"{block}/gdn/norm", (128,), "plain"
    yield f"{block}/gdn/output", (WIDTH, 6144), fine, f"{block}/gdn/gated_output"


def _mtp() -> Rows:
    yield "mtp/input_projection", (WIDTH, 2 * WIDTH), "draft", "mtp/stem_input"
    for name in ("embedding_norm", "hidden_norm", "final_norm"):
        yield f"mtp/{name}", (WIDTH,), "plain"
    yield from _block("mtp/layers/0", _attention, ("draft",) * 4)


def _vision() -> Rows:
    width = 1152
    yield "vision/patch_embedding", (width, 1536), "patches", "vision/patch_input"
    yield "vision/patch_embedding_bias", (width,), "plain"
    yield "vision/position_embedding", (2304, width), "plain"
    for layer in range(VISION_LAYERS):
        block = f"vision/layers/{layer}"
        for name in ("norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias"):
            yield f"{block}/{name}", (width,), "plain"
        for name, rows, columns, role, source in (
            ("attention/query", width, width, "coarse", "attention_input"),
            ("attention/key", width, width, "coarse", "attention_input"),
            ("attention/value", width, width, "coarse", "attention_input"),
            ("attention/output", width, width, "fine", "attention_output"),
            ("mlp/fc1", 4304, width, "coarse", "mlp_input"),
            ("mlp/fc2", width, 4304, "fine", "mlp_activation"),
        ):
            yield f"{block}/{name}", (rows, columns), role, f"{block}/{source}"
            yield f"{block}/{name}_bias", (rows,), "plain"
    yield "vision/merger/norm_weight", (width,), "plain"
    yield "vision/merger/norm_bias", (width,), "plain"
    yield "vision/merger/fc1", (4608, 4608), "draft", "vision/merger/input"
    yield "vision/merger/fc1_bias", (4608,), "plain"
    yield "vision/merger/fc2", (WIDTH, 4608), "draft", "vision/merger/activation"
    yield "vision/merger/fc2_bias", (WIDTH,), "plain"


def _dflash2() -> Rows:
    features = (WIDTH, 5 * WIDTH)
    yield "dflash2/feature_projection", features, "draft", "dflash2/target_features"
    yield "dflash2/context_norm", (WIDTH,), "plain"
    yield "dflash2/final_norm", (WIDTH,), "plain"
    for layer in range(DFLASH2_LAYERS):
        block = f"dflash2/layers/{layer}"
        yield f"{block}/input_norm", (WIDTH,), "plain"
        yield f"{block}/post_attention_norm", (WIDTH,), "plain"
        source, context = f"{block}/query_projection_input", "dflash2/context_input"
        for name, rows, origin in (
            ("query", 4096, source),
            ("key", 1024, source),
            ("context_key", 1024, context),
            ("value", 1024, source),
            ("context_value", 1024, context),
        ):
            yield f"{block}/attention/{name}", (rows, WIDTH), "draft", origin
        yield f"{block}/attention/query_norm", (128,), "plain"
        yield f"{block}/attention/key_norm", (128,), "plain"
        yield (
            f"{block}/attention/output",
            (WIDTH, 4096),
            "draft",
            f"{block}/attention_output",
        )
        for name in ("gate", "up"):
            yield (
                f"{block}/mlp/{name}",
                (MLP_WIDTH, WIDTH),
                "draft",
                f"{block}/mlp_input",
            )
        yield f"{block}/mlp/down", (WIDTH, MLP_WIDTH), "draft", f"{block}/mlp_product"
        for side in ("attention_conv", "mlp_conv"):
            yield f"{block}/{side}/base_kernel", (2, 2, WIDTH), "plain"
            source = f"{block}/{side}_input"
            yield f"{block}/{side}/kernel_projection", (1280, WIDTH), "plain", source
    selector = "dflash2/candidate_selector"
    final = "dflash2/final_hidden"
    yield f"{selector}/hidden_projection", (256, WIDTH), "plain", final
    yield f"{selector}/predecessor_codebook", (VOCABULARY_ROWS, 256), "plain"
    yield f"{selector}/successor_codebook", (VOCABULARY_ROWS, 256), "plain"


def _proposal(drafters: tuple[str, ...]) -> Rows:
    yield "proposal/head", (PROPOSAL_ROWS, WIDTH), "coarse", *drafters
    yield "proposal/token_ids", (PROPOSAL_ROWS,), "token_ids"
