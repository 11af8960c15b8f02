"""Grouped signed integers: codes of 4, 5, 6 or 8 bits with one binary16 multiplier per group.

    w[n, k] = f32(scale[n, k // group] * code[n, k])        exact: at most 19 significant bits

Groups run along K, never cross rows, and the last one of a row may be short. Fields in natural
order: `codes` int8 [N, K], `scales` uint16 (binary16 bits) [N, ceil(K / group)].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_jax.artifact.blocks import (
    for_each_block,
    require_finite,
    require_matrix,
    row_blocks,
)
from ninfer_jax.artifact.magnitudes import float32_values, group_magnitudes
from ninfer_jax.errors import ArtifactError


@dataclass(frozen=True)
class GroupedFormat:
    """Constants of one grouped format: code width, columns per group, and the legal codes."""

    bits: int
    group: int
    minimum: int
    maximum: int


GROUPED: dict[str, GroupedFormat] = {
    "q4_g64_fp16": GroupedFormat(4, 64, -8, 7),
    "q5_g64_fp16": GroupedFormat(5, 64, -16, 15),
    "q6_g64_fp16": GroupedFormat(6, 64, -32, 31),
    "q8_g32_fp16": GroupedFormat(8, 32, -127, 127),
}


def groups_per_row(format: str, columns: int) -> int:
    """Number of groups that hold at least one of `columns` columns: ceil(K / group)."""
    return -(-columns // GROUPED[format].group)


def decode_grouped(format: str, fields: dict[str, np.ndarray]) -> np.ndarray:
    """Return the float32 matrix `[N, K]` that the fields denote; exact."""
    codes, scales = fields["codes"], fields["scales"]
    rows, columns = codes.shape
    group = GROUPED[format].group
    values = np.empty((rows, columns), np.float32)
    for block in row_blocks(rows, columns):
        multiplier = scales[block].view(np.float16).astype(np.float32)
        spread = np.repeat(multiplier, group, axis=1)[:, :columns]
        with np.errstate(all="ignore"):
            np.multiply(codes[block], spread, out=values[block])
    return values


def encode_grouped(values: np.ndarray, format: str) -> tuple[np.ndarray, np.ndarray]:
    """Quantise a matrix `[N, K]` by the maximum of each group (`MAXABS_F16_RECIP_RNE_V1`).

        scale = f16(f32(amax / qmax)), the smallest subnormal when that rounds to zero
        code  = clamp(round_half_even(f32(x * f32(1 / scale))))

    The reciprocal in two steps is normative: `x / scale` gives other codes at ties. `values` are
    float32, `ml_dtypes.bfloat16`, or BF16 words in uint16; BF16 is widened block by block. Rows do
    not depend on each other, so a matrix fed in row blocks gives the same fields.

    Returns `(codes int8 [N, K], scales uint16 [N, groups])`. Raises `ArtifactError` for infinity,
    NaN, and groups whose scale overflows binary16.
    """
    values = require_matrix(values, format)
    constants = GROUPED[format]
    rows, columns = values.shape
    groups = groups_per_row(format, columns)
    codes = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, groups), np.uint16)

    def encode(block: slice) -> None:
        part = values[block]
        if columns != groups * constants.group:
            padded = np.zeros((part.shape[0], groups * constants.group), part.dtype)
            padded[:, :columns] = part
            part = padded
        part = np.ascontiguousarray(part)
        largest = group_magnitudes(part, constants.group)
        require_finite(largest, format, block.start)
        words = _scale_words(largest, constants, format, block.start)
        scales[block] = words
        codes[block] = _codes(float32_values(part), words, constants)[:, :columns]

    for_each_block(rows, columns, encode)
    return codes, scales


def _scale_words(
    largest: np.ndarray, constants: GroupedFormat, format: str, first_row: int
) -> np.ndarray:
    """Binary16 words for the group maxima float32 `[rows, groups]`."""
    # binary64 division rounded once more is the correctly rounded binary32 quotient (53 >= 2*24+2).
    wide = (largest.astype(np.float64) / constants.maximum).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        words = wide.astype(np.float16).view(np.uint16)
    words[(words == 0) & (largest > 0)] = 1
    overflow = words == 0x7C00
    if overflow.any():
        row, group = (int(index) for index in np.argwhere(overflow)[0])
        raise ArtifactError(
            f"{format}: row {first_row + row}, group {group}: largest magnitude "
            f"{largest[row, group]:g} needs a scale beyond binary16"
        )
    return words


def _codes(part: np.ndarray, words: np.ndarray, constants: GroupedFormat) -> np.ndarray:
    """Codes int8 `[rows, groups * group]` of float32 values under their scale words."""
    scale = words.view(np.float16).astype(np.float32)
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=words != 0)
    with np.errstate(under="ignore"):
        scaled = part.reshape(-1, constants.group) * inverse.reshape(-1, 1)
    np.rint(scaled, out=scaled)
    # Under a subnormal scale a code can round to as much as 1.5 times the maximum.
    np.clip(scaled, constants.minimum, constants.maximum, out=scaled)
    return scaled.astype(np.int8).reshape(part.shape)


def check_grouped(format: str, fields: dict[str, np.ndarray], name: str) -> None:
    """Scan stored words; raises `ArtifactError` naming the first row that breaks a rule.

    A scale is +0 or a finite positive binary16; under a zero scale every code is 0; the code -128
    does not exist.
    """
    codes, scales = fields["codes"], fields["scales"]
    constants = GROUPED[format]
    rows, columns = codes.shape
    for block in row_blocks(rows, columns):
        words = scales[block]
        _fail_at(
            words >= 0x7C00,
            block.start,
            name,
            "group scale is negative, infinite or NaN",
            words,
        )
        part = codes[block]
        _fail_at(
            (part < constants.minimum) | (part > constants.maximum),
            block.start,
            name,
            f"code outside {constants.minimum}..{constants.maximum}",
            part,
        )
        spread = np.repeat(words == 0, constants.group, axis=1)[:, :columns]
        _fail_at(
            spread & (part != 0),
            block.start,
            name,
            "non-zero code under a zero scale",
            part,
        )


def _fail_at(bad: np.ndarray, first_row: int, name: str, what: str, words: np.ndarray) -> None:
    if bad.any():
        row, column = (int(index) for index in np.argwhere(bad)[0])
        raise ArtifactError(
            f"{name}: row {first_row + row}, column {column}: {what} (word {words[row, column]})"
        )
