"""Rules that a component config must meet before anything may be sized from it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ninfer_jax.artifact.records import Record
from ninfer_jax.errors import ArtifactError

MAXIMUM_DIMENSION = (1 << 31) - 1

_ARCHITECTURES = {
    "text": ["Qwen3_5ForCausalLM"],
    "mtp": ["Qwen3_5MTP"],
    "dflash2": ["DFlash2DraftModel"],
}
_MODEL_TYPES = {"text": "qwen3_5_text", "vision": "qwen3_5_vision", "dflash2": "qwen3"}


def check_identity(component: str, config: Mapping[str, object]) -> None:
    """Raise `ArtifactError` unless `architectures` and `model_type` are the supported ones."""
    label = f"component {component!r}.config"
    for member, known in (
        ("architectures", _ARCHITECTURES.get(component)),
        ("model_type", _MODEL_TYPES.get(component)),
    ):
        if known is not None and config.get(member) != known:
            found = str(config.get(member))[:80]
            raise ArtifactError(f"{label}.{member}: unsupported {found!a}, expected {known!a}")


def check_text_config(config: Mapping[str, object]) -> None:
    """Check the config of the `text` component; `ArtifactError` names the field at fault."""
    check_identity("text", config)
    fields = _Fields(config, "text")
    fields.dimensions(
        "hidden_size vocab_size num_hidden_layers max_position_embeddings num_attention_heads "
        "num_key_value_heads head_dim linear_num_key_heads linear_key_head_dim "
        "linear_num_value_heads linear_value_head_dim linear_conv_kernel_dim intermediate_size"
    )
    fields.positive("rms_norm_eps")
    fields.divides("num_key_value_heads", "num_attention_heads")
    fields.divides("linear_num_key_heads", "linear_num_value_heads")
    fields.layer_types("linear_attention", "full_attention")
    rope = _Fields(fields.member("rope_parameters"), "text", "config.rope_parameters")
    rope.positive("rope_theta")
    factor = rope.positive("partial_rotary_factor")
    width = int(fields.dimension("head_dim") * factor)
    if factor > 1 or width <= 0 or width % 2:
        raise ArtifactError(
            f"{rope.label}.partial_rotary_factor: {factor} gives a rotary width of {width}, "
            "expected even, above 0, and a factor of at most 1"
        )
    section = rope.integers("mrope_section")
    if len(section) != 3 or sum(section) != width // 2:
        raise ArtifactError(
            f"{rope.label}.mrope_section: {section}, expected 3 entries that add up to {width // 2}"
        )
    reached = interleaved_section(section)
    if reached != section:
        raise ArtifactError(
            f"{rope.label}.mrope_section: {section} cannot be interleaved, the rule gives {reached}"
        )


def interleaved_section(section: list[int]) -> list[int]:
    """Count the rotary pairs of each axis (time, height, width) under the interleave rule.

    Pair r turns by height if r % 3 == 1 and r < 3 * section[1], by width if r % 3 == 2 and
    r < 3 * section[2], else by time. [11, 11, 10]: height 1, 4, .., 31; width 2, 5, .., 29.
    """
    pairs = sum(section)
    height = len(range(1, min(pairs, 3 * section[1]), 3))
    width = len(range(2, min(pairs, 3 * section[2]), 3))
    return [pairs - height - width, height, width]


def check_vision_config(config: Mapping[str, object]) -> None:
    """Check the config of the `vision` component; `ArtifactError` names the field at fault."""
    check_identity("vision", config)
    fields = _Fields(config, "vision")
    fields.dimensions(
        "depth hidden_size intermediate_size num_heads patch_size temporal_patch_size "
        "spatial_merge_size num_position_embeddings"
    )
    fields.divides("num_heads", "hidden_size")
    head = fields.dimension("hidden_size") // fields.dimension("num_heads")
    if head % 4:
        raise ArtifactError(f"{fields.label}: head width {head} is not a multiple of 4")
    positions = fields.dimension("num_position_embeddings")
    if math.isqrt(positions) ** 2 != positions:
        raise ArtifactError(
            f"{fields.label}.num_position_embeddings: {positions} is not a perfect square"
        )


def check_mtp_config(config: Mapping[str, object]) -> None:
    """Check the config of the `mtp` component."""
    check_identity("mtp", config)


def check_dflash2_config(
    config: Mapping[str, object], text: Mapping[str, object], proposable_tokens: int
) -> None:
    """Check the config of `dflash2` against a checked text config.

    `proposable_tokens` is the number of rows of the proposal domain, or of public tokens.
    """
    check_identity("dflash2", config)
    fields, target = _Fields(config, "dflash2"), _Fields(text, "text")
    fields.dimensions(
        "intermediate_size num_attention_heads num_key_value_heads head_dim num_hidden_layers "
        "max_position_embeddings"
    )
    fields.positive("rms_norm_eps")
    fields.divides("num_key_value_heads", "num_attention_heads")
    if fields.dimension("head_dim") % 2:
        raise ArtifactError(f"{fields.label}.head_dim: {config['head_dim']} is odd")
    _Fields(fields.member("rope_parameters"), "dflash2", "config.rope_parameters").positive(
        "rope_theta"
    )
    if "sliding_attention" in fields.layer_types("sliding_attention", "full_attention"):
        fields.dimensions("sliding_window")
    draft = _Fields(fields.member("dflash_config"), "dflash2", "config.dflash_config")
    draft.dimensions("conv_kernel_size conv_group_size selector_rank selector_top_k")
    layers = target.dimension("num_hidden_layers")
    taps = draft.integers("target_layer_ids")
    if not taps or len(set(taps)) < len(taps) or not all(0 <= tap < layers for tap in taps):
        raise ArtifactError(
            f"{draft.label}.target_layer_ids: {taps}, expected distinct layers in [0, {layers})"
        )
    mask, rows = draft.integer("mask_token_id"), target.dimension("vocab_size")
    if not 0 <= mask < rows:
        raise ArtifactError(f"{draft.label}.mask_token_id: {mask} is outside [0, {rows})")
    group, width = draft.dimension("conv_group_size"), target.dimension("hidden_size")
    if width % group:
        raise ArtifactError(f"{draft.label}.conv_group_size: {group} does not divide {width}")
    top_k = draft.dimension("selector_top_k")
    if top_k > proposable_tokens:
        raise ArtifactError(
            f"{draft.label}.selector_top_k: {top_k} is above the {proposable_tokens} "
            "proposable tokens"
        )


class _Fields:
    """Members of one config object, checked as they are read; unknown members are left alone."""

    def __init__(self, config: object, component: str, path: str = "config"):
        self.label = f"component {component!r}.{path}"
        self._record = Record(config, self.label)

    def member(self, name: str) -> object:
        if name not in self._record:
            raise ArtifactError(f"{self.label}: missing member {name!r}")
        return self._record.value[name]

    def integer(self, name: str) -> int:
        value = self.member(name)
        if type(value) is not int:
            raise ArtifactError(f"{self.label}.{name}: {str(value)[:80]!a} is not an integer")
        return value

    def dimension(self, name: str) -> int:
        value = self.integer(name)
        if not 0 < value <= MAXIMUM_DIMENSION:
            raise ArtifactError(f"{self.label}.{name}: {value} is outside 1..2^31-1")
        return value

    def dimensions(self, names: str) -> None:
        for name in names.split():
            self.dimension(name)

    def positive(self, name: str) -> float:
        value = self.member(name)
        if type(value) not in (int, float):
            raise ArtifactError(f"{self.label}.{name}: {str(value)[:80]!a} is not a number")
        with np.errstate(over="ignore", under="ignore"):
            narrow = np.float32(value)
        if not (np.isfinite(narrow) and narrow > 0):
            raise ArtifactError(
                f"{self.label}.{name}: {value} is not positive and finite in binary32"
            )
        return float(value)

    def integers(self, name: str) -> list[int]:
        values = self.member(name)
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise ArtifactError(f"{self.label}.{name}: expected an array of integers")
        if any(not 0 <= value <= MAXIMUM_DIMENSION for value in values):
            raise ArtifactError(f"{self.label}.{name}: {values[:8]} has an entry out of range")
        return values

    def divides(self, divisor: str, name: str) -> None:
        part, whole = self.dimension(divisor), self.dimension(name)
        if whole % part:
            raise ArtifactError(
                f"{self.label}: {name} {whole} is not a multiple of {divisor} {part}"
            )

    def layer_types(self, *known: str) -> list[str]:
        types, count = self.member("layer_types"), self.dimension("num_hidden_layers")
        if not isinstance(types, list) or len(types) != count:
            found = len(types) if isinstance(types, list) else "no list of"
            raise ArtifactError(
                f"{self.label}.layer_types: {found} entries, expected num_hidden_layers = {count}"
            )
        for index, kind in enumerate(types):
            if kind not in known:
                raise ArtifactError(
                    f"{self.label}.layer_types[{index}]: unknown {str(kind)[:80]!a}, "
                    f"expected one of {', '.join(known)}"
                )
        return types
