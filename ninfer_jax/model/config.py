"""Dimensions of the text decoder, read from an artifact's component config.

The same code is the 4 MB demo and the 27B model; `docs/artifact.md` section 7 lists the
members. Rules are checked here so that everything behind may rely on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from ninfer_jax.errors import ArtifactError

LayerKind = Literal["linear_attention", "full_attention"]


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """Facts of one text decoder.

    Attributes:
      addressable_ids: ids that exist, `0..addressable_ids - 1`; rows of embedding and head
        beyond it hold arbitrary numbers and must never win.
      rotary_width: dims of a head that rotate.
      mrope_section: rotary pairs per position axis (time, height, width).
    """

    hidden_size: int
    vocab_size: int
    addressable_ids: int
    layer_types: tuple[LayerKind, ...]
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_width: int
    rope_theta: float
    mrope_section: tuple[int, int, int]
    linear_num_key_heads: int
    linear_key_head_dim: int
    linear_num_value_heads: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_types)

    @property
    def query_width(self) -> int:
        """Width of all query heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Width of all key (or value) heads."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linear_key_width(self) -> int:
        """Width of all Gated DeltaNet key heads."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_width(self) -> int:
        """Width of all Gated DeltaNet value heads."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def convolution_width(self) -> int:
        """Channels of the causal convolution: query, key, value."""
        return 2 * self.linear_key_width + self.linear_value_width

    @property
    def full_attention_layers(self) -> tuple[int, ...]:
        """Indices of the full-attention layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "full_attention")

    @property
    def linear_attention_layers(self) -> tuple[int, ...]:
        """Indices of the Gated DeltaNet layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "linear_attention")


def _integer(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ArtifactError(f"text config: {name} is {value!r}, expected a positive integer")
    return value


def rotary_axis(pair: int, section: tuple[int, int, int]) -> int:
    """Position axis (0 time, 1 height, 2 width) of a rotary pair.

    The axes interleave. Worked example, section [11, 11, 10]: pairs 0, 1, 2 are time, height,
    width; pair 31 is height (31 mod 3 = 1 and 31 < 33); pair 30 is time.
    """
    if pair % 3 == 1 and pair < 3 * section[1]:
        return 1
    if pair % 3 == 2 and pair < 3 * section[2]:
        return 2
    return 0


def text_config(component: Mapping[str, Any], addressable_ids: int) -> TextConfig:
    """Reads `components.text.config`.

    Args:
      component: the JSON object.
      addressable_ids: number of ids the tokenizer defines.

    Raises:
      ArtifactError: naming the member, what was found and what was expected.
    """
    architectures = component.get("architectures")
    if architectures != ["Qwen3_5ForCausalLM"]:
        raise ArtifactError(
            f"text config: architectures is {architectures!r}, expected ['Qwen3_5ForCausalLM']"
        )
    if component.get("tie_word_embeddings"):
        raise ArtifactError("text config: tie_word_embeddings is true, expected false")
    kinds = component.get("layer_types")
    layers = _integer(component, "num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ArtifactError(f"text config: layer_types must list {layers} entries")
    for index, kind in enumerate(kinds):
        if kind not in ("linear_attention", "full_attention"):
            raise ArtifactError(f"text config: layer_types[{index}] is {kind!r}, which is unknown")
    head_dim = _integer(component, "head_dim")
    rope = component.get("rope_parameters")
    if not isinstance(rope, Mapping):
        raise ArtifactError("text config: rope_parameters is missing")
    factor = rope.get("partial_rotary_factor")
    theta = rope.get("rope_theta")
    section = rope.get("mrope_section")
    if not isinstance(factor, (int, float)) or not 0 < factor <= 1:
        raise ArtifactError(f"text config: partial_rotary_factor is {factor!r}, expected (0, 1]")
    if not isinstance(theta, (int, float)) or not theta > 0:
        raise ArtifactError(f"text config: rope_theta is {theta!r}, expected a positive number")
    width = int(head_dim * factor)
    if width <= 0 or width % 2:
        raise ArtifactError(f"text config: rotary width {width} must be even and positive")
    if (
        not isinstance(section, list)
        or len(section) != 3
        or not all(isinstance(part, int) and part >= 0 for part in section)
        or sum(section) != width // 2
    ):
        raise ArtifactError(
            f"text config: mrope_section is {section!r}, expected 3 integers summing to {width // 2}"
        )
    axes = [rotary_axis(pair, tuple(section)) for pair in range(width // 2)]
    if [axes.count(axis) for axis in range(3)] != section:
        raise ArtifactError(f"text config: mrope_section {section!r} cannot be interleaved")
    eps = component.get("rms_norm_eps", 1e-6)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise ArtifactError(f"text config: rms_norm_eps is {eps!r}, expected a small positive float")
    config = TextConfig(
        hidden_size=_integer(component, "hidden_size"),
        vocab_size=_integer(component, "vocab_size"),
        addressable_ids=addressable_ids,
        layer_types=tuple(kinds),
        intermediate_size=_integer(component, "intermediate_size"),
        num_attention_heads=_integer(component, "num_attention_heads"),
        num_key_value_heads=_integer(component, "num_key_value_heads"),
        head_dim=head_dim,
        rotary_width=width,
        rope_theta=float(theta),
        mrope_section=tuple(section),
        linear_num_key_heads=_integer(component, "linear_num_key_heads"),
        linear_key_head_dim=_integer(component, "linear_key_head_dim"),
        linear_num_value_heads=_integer(component, "linear_num_value_heads"),
        linear_value_head_dim=_integer(component, "linear_value_head_dim"),
        linear_conv_kernel_dim=_integer(component, "linear_conv_kernel_dim"),
        max_position_embeddings=_integer(component, "max_position_embeddings"),
        rms_norm_eps=eps,
    )
    if config.num_attention_heads % config.num_key_value_heads:
        raise ArtifactError("text config: num_key_value_heads must divide num_attention_heads")
    if config.linear_num_value_heads % config.linear_num_key_heads:
        raise ArtifactError("text config: linear_num_key_heads must divide linear_num_value_heads")
    if addressable_ids > config.vocab_size:
        raise ArtifactError(
            f"the tokenizer defines {addressable_ids} ids, vocab_size is {config.vocab_size}"
        )
    return config
