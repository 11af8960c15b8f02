"""Dimensions of the text decoder, read from an artifact's component config.

The same code is the small demo and the 27B model; `docs/artifact.md` section 7 lists the
members. Rules are checked here so that everything behind may rely on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from ninfer_jax.artifact.config_rules import check_text_config
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
    rms_norm_eps: float

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
    """Reads `components.text.config`, after checking every rule on it.

    Args:
      component: the JSON object.
      addressable_ids: number of ids the tokenizer defines.

    Raises:
      ArtifactError: naming the member, what was found and what was expected.
    """
    check_text_config(component)
    if component.get("tie_word_embeddings"):
        raise ArtifactError("text config: tie_word_embeddings is true, expected false")
    if addressable_ids > component["vocab_size"]:
        raise ArtifactError(
            f"the tokenizer defines {addressable_ids} ids, vocab_size is {component['vocab_size']}"
        )
    rope = component["rope_parameters"]
    named = {
        field.name: component[field.name]
        for field in dataclasses.fields(TextConfig)
        if field.name in component and field.name != "layer_types"
    }
    return TextConfig(
        **named,
        addressable_ids=addressable_ids,
        layer_types=tuple(component["layer_types"]),
        rotary_width=int(component["head_dim"] * rope["partial_rotary_factor"]),
        rope_theta=float(rope["rope_theta"]),
        mrope_section=tuple(rope["mrope_section"]),
    )
