"""Closed vocabularies of numeric formats, storage layouts and resource encodings.

An identifier is compared as a whole string and never parsed. Containers of version 1 and 2 spell
the same nine formats differently; everything behind the reader knows the version 3 spelling only.
"""

from __future__ import annotations

from dataclasses import dataclass

TENSOR_ALIGNMENT = 256
RAW_BYTES = "raw_bytes_v1"
LEGACY_RAW_BYTES = "raw-bytes-v1"

CONTIGUOUS = "contiguous_le_v1"
ROW_SPLIT = "row_split_k128_v1"
BLOCK_SCALE = "block_scale_k16_m128x4_v1"
ROW_SCALE = "row_scale_v1"


@dataclass(frozen=True)
class Format:
    """One numeric format: its names, and the one layout in which it may be stored.

    Attributes:
      name: version 3 identifier.
      layout: version 3 identifier of the layout.
      legacy_name: identifier in versions 1 and 2.
      legacy_layout: identifier of the layout in versions 1 and 2.
      since: first container version that admits the format.
    """

    name: str
    layout: str
    legacy_name: str
    legacy_layout: str
    since: int = 1


FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format("bf16", CONTIGUOUS, "BF16", "contiguous-le-v1"),
        Format("fp32", CONTIGUOUS, "FP32", "contiguous-le-v1"),
        Format("int32", CONTIGUOUS, "I32", "contiguous-le-v1"),
        Format("q4_g64_fp16", ROW_SPLIT, "Q4G64_F16S", "row-split-k128-v1"),
        Format("q5_g64_fp16", ROW_SPLIT, "Q5G64_F16S", "row-split-k128-v1"),
        Format("q6_g64_fp16", ROW_SPLIT, "Q6G64_F16S", "row-split-k128-v1"),
        Format("q8_g32_fp16", ROW_SPLIT, "W8G32_F16S", "row-split-k128-v1"),
        Format("nvfp4", BLOCK_SCALE, "NVFP4", "blockscale-k16-m128x4-v1", since=2),
        Format(
            "fp8_e4m3fn_row_bf16",
            ROW_SCALE,
            "FP8_E4M3FN_ROW_BF16S",
            "row-scale-v1",
            since=2,
        ),
    )
}

LEGACY_FORMATS: dict[str, Format] = {entry.legacy_name: entry for entry in FORMATS.values()}

DIRECT_FORMATS = ("bf16", "fp32", "int32")
GROUPED_FORMATS = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")
FP8 = "fp8_e4m3fn_row_bf16"
NVFP4 = "nvfp4"
