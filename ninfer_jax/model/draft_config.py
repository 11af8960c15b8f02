"""Dimensions of the DFlash2 drafter, read from an artifact's component config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ninfer_jax.errors import ArtifactError
from ninfer_jax.model.config import TextConfig

NEUTRAL: dict[str, Any] = {
    "is_causal": False,
    "sample_from_anchor": False,
    "input_embedding_scale": 1,
    "output_multiplier": 1,
    "final_logit_softcapping": None,
}
"""Members that drafters of other models use; here they may only say what is done anyway."""


@dataclasses.dataclass(frozen=True)
class DFlash2Config:
    """Facts of one drafter.

    Attributes:
      hidden_size: width of the target's residual stream, which is also the drafter's.
      taps: target layers whose output is read, in the order of the features.
      mask_token: id that stands for a token to be drafted.
      sliding_window: context rows that a query sees and the ring keeps.
      group_size: channels that share a dynamic convolution coefficient.
      top_k: candidates per drafted column.
    """

    hidden_size: int
    vocab_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    sliding_window: int
    taps: tuple[int, ...]
    mask_token: int
    conv_taps: int
    group_size: int
    selector_rank: int
    top_k: int

    @property
    def query_width(self) -> int:
        """Width of all query heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Width of all key (or value) heads."""
        return self.num_key_value_heads * self.head_dim

    @property
    def feature_width(self) -> int:
        """Width of the features of one target column."""
        return len(self.taps) * self.hidden_size


def dflash2_config(component: Mapping[str, Any], text: TextConfig) -> DFlash2Config:
    """Reads `components.dflash2.config`, whose general rules `check_artifact` has checked.

    Raises:
      ArtifactError: naming the member, what was found and what was expected.
    """
    draft = component["dflash_config"]
    label = "dflash2 config"
    for member, neutral in NEUTRAL.items():
        for place in (component, draft):
            found = place.get(member, neutral)
            if found != neutral:
                raise ArtifactError(f"{label}: {member} is {found!a}, expected {neutral!a}")
    if set(component["layer_types"]) != {"sliding_attention"}:
        raise ArtifactError(f"{label}: every layer must be sliding_attention")
    if draft["mask_token_id"] >= text.addressable_ids:
        raise ArtifactError(
            f"{label}: mask_token_id {draft['mask_token_id']} is none of the tokenizer's "
            f"{text.addressable_ids} ids"
        )
    return DFlash2Config(
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        intermediate_size=component["intermediate_size"],
        num_layers=component["num_hidden_layers"],
        num_attention_heads=component["num_attention_heads"],
        num_key_value_heads=component["num_key_value_heads"],
        head_dim=component["head_dim"],
        rms_norm_eps=float(component["rms_norm_eps"]),
        rope_theta=float(component["rope_parameters"]["rope_theta"]),
        sliding_window=component["sliding_window"],
        taps=tuple(draft["target_layer_ids"]),
        mask_token=draft["mask_token_id"],
        conv_taps=draft["conv_kernel_size"],
        group_size=draft["conv_group_size"],
        selector_rank=draft["selector_rank"],
        top_k=draft["selector_top_k"],
    )
