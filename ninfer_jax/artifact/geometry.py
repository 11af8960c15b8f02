"""Dimensions of the models whose stored objects can be computed: the 27B, and a tiny test model.

Versions 1 and 2 carry no config: their identity selects the geometry.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ninfer_jax.errors import ArtifactError


@dataclass(frozen=True)
class VisionGeometry:
    """Dimensions of the vision tower."""

    layers: int = 27
    width: int = 1152
    mlp_width: int = 4304
    heads: int = 16
    positions: int = 2304
    patch: int = 16
    temporal_patch: int = 2
    merge: int = 2

    @property
    def patch_columns(self) -> int:
        return 3 * self.temporal_patch * self.patch**2

    @property
    def merged_width(self) -> int:
        return self.width * self.merge**2


@dataclass(frozen=True)
class DraftGeometry:
    """Dimensions of DFlash2; its width and vocabulary are those of text."""

    layers: int = 5
    mlp_width: int = 17408
    heads: int = 32
    key_value_heads: int = 8
    head_width: int = 128
    target_layers: tuple[int, ...] = (5, 19, 33, 47, 61)
    mask_token: int = 248070
    convolution_taps: int = 2
    convolution_group: int = 16
    selector_rank: int = 256
    selector_top_k: int = 16


@dataclass(frozen=True)
class Geometry:
    """Dimensions of one model.

    Attributes:
      vocabulary_rows: rows of embedding and head.
      public_tokens: ids that the tokenizer defines.
      nvfp4_mlp_layers: layers below it have an NVFP4 MLP in the nvfp4 profile, the others FP8.
      mrope_section: rotary pairs by axis (time, height, width).
    """

    layers: int = 64
    width: int = 5120
    mlp_width: int = 17408
    vocabulary_rows: int = 248320
    public_tokens: int = 248077
    proposal_rows: int = 131072
    heads: int = 24
    key_value_heads: int = 4
    head_width: int = 256
    mrope_section: tuple[int, int, int] = (11, 11, 10)
    linear_key_heads: int = 16
    linear_key_width: int = 128
    linear_value_heads: int = 48
    linear_value_width: int = 128
    nvfp4_mlp_layers: int = 56
    vision: VisionGeometry = VisionGeometry()
    draft: DraftGeometry = DraftGeometry()


QWEN_27B = Geometry()

TINY = Geometry(
    layers=8,
    width=128,
    mlp_width=256,
    vocabulary_rows=320,
    public_tokens=289,
    proposal_rows=128,
    heads=4,
    key_value_heads=2,
    head_width=32,
    mrope_section=(2, 1, 1),
    linear_key_heads=2,
    linear_key_width=32,
    linear_value_heads=4,
    linear_value_width=32,
    nvfp4_mlp_layers=6,
    vision=VisionGeometry(layers=2, width=64, mlp_width=88, heads=4, positions=16),
    draft=DraftGeometry(
        layers=2,
        mlp_width=256,
        heads=4,
        key_value_heads=2,
        head_width=32,
        target_layers=(1, 4, 6),
        mask_token=282,
        selector_rank=32,
        selector_top_k=4,
    ),
)

# `model_id` -> dimensions.
GEOMETRIES = {"qwen3.8-27b": QWEN_27B, "qwen3.6-27b": QWEN_27B, "ninfer-tiny": TINY}


def with_layers(geometry: Geometry, layers: int) -> Geometry:
    """Return the same model with fewer text layers.

    DFlash2 then reads as many different layers as remain, evenly spread: 5 of 8 are 0, 1, 3, 4, 6.
    Raises `ArtifactError` unless the number is 1 to the number of layers of the model.
    """
    if not 1 <= layers <= geometry.layers:
        raise ArtifactError(f"{layers} layers, expected 1 to {geometry.layers}")
    targets = geometry.draft.target_layers
    if max(targets) >= layers:
        count = min(len(targets), layers)
        targets = tuple(index * layers // count for index in range(count))
    draft = dataclasses.replace(geometry.draft, target_layers=targets)
    return dataclasses.replace(geometry, layers=layers, draft=draft)
