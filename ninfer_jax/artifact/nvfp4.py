"""NVFP4: E2M1 codes, one E4M3FN scale per 16 columns of a row, one binary32 divisor per object.

    w[n, k] = f32(e2m1(code[n, k]) * e4m3fn(scale[n, k // 16]) / divisor)

The product is exact, only the division rounds; a precomputed reciprocal would not be bit-exact.
E2M1: bit 3 is the sign, bits 2..0 index the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Fields in
natural order: `codes` uint8 [N, K / 2] (even column in the low nibble), `scales` uint8 [N, K / 16],
`divisor` float32 [].
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ninfer_jax.artifact.blocks import (
    ELEMENTS_PER_TASK,
    for_each_block,
    require_finite,
    require_matrix,
    row_blocks,
)
from ninfer_jax.artifact.fp8 import E4M3_MAXIMUM, E4M3_VALUES, e4m3_words
from ninfer_jax.artifact.magnitudes import float32_values, group_magnitudes, row_magnitudes
from ninfer_jax.artifact.small_floats import E2M1, rounded_words
from ninfer_jax.errors import ArtifactError

BLOCK = 16
E2M1_VALUES = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
)
_LARGEST_PRODUCT = 6.0 * 448.0


def decode_nvfp4(fields: dict[str, np.ndarray]) -> np.ndarray:
    """Return the float32 matrix `[N, K]` that the fields denote; the one division rounds."""
    codes, scales, divisor = fields["codes"], fields["scales"], fields["divisor"]
    rows, half = codes.shape
    # Every possible value of this object: value[scale word * 16 + code], at most 4096 of them.
    with np.errstate(all="ignore"):
        table = (E4M3_VALUES[:, None] * E2M1_VALUES / np.float32(divisor)).ravel()
    values = np.empty((rows, half * 2), np.float32)
    for block in row_blocks(rows, half * 2):
        base = np.repeat(scales[block].astype(np.uint16) << 4, BLOCK // 2, axis=1)
        part = codes[block]
        values[block, 0::2] = table[base | (part & 15)]
        values[block, 1::2] = table[base | (part >> 4)]
    return values


def nvfp4_divisor(blocks: Iterable[np.ndarray]) -> np.float32:
    """Return `f32(2688 / max |x|)` of a matrix that is fed in row blocks; 1 when all is zero.

    Each block is a matrix `[n, K]` of any number of rows, float32 or BF16 (as in `encode_nvfp4`).
    Raises `ArtifactError` for infinity, NaN, and matrices so small that the divisor overflows.
    """
    largest, first_row = 0.0, 0
    for values in blocks:
        values = require_matrix(values, "nvfp4")
        for block in row_blocks(*values.shape, ELEMENTS_PER_TASK):
            magnitudes = row_magnitudes(np.ascontiguousarray(values[block]))
            require_finite(magnitudes, "nvfp4", first_row + block.start)
            largest = max(largest, float(magnitudes.max()))
        first_row += values.shape[0]
    with np.errstate(over="ignore"):
        divisor = np.float32(_LARGEST_PRODUCT / largest) if largest else np.float32(1)
    if not np.isfinite(divisor):
        raise ArtifactError(f"nvfp4: largest magnitude {largest:g} needs a divisor beyond binary32")
    return divisor


def encode_nvfp4(
    values: np.ndarray, divisor: np.float32 | None = None
) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Quantise a matrix `[N, K]`, K a multiple of 16, by its maximum (`nvfp4_absmax`).

        divisor = f32(2688 / max |x|)                                  2688 = 6 * 448
        scale   = e4m3fn(min(f32(f32(block max * divisor) / 6), 448)), word 1 when that is zero
        code    = e2m1(f32(f32(x * divisor) / scale))

    `values` are float32, `ml_dtypes.bfloat16`, or BF16 words in uint16; BF16 is widened block by
    block, never as a whole. Rows of a larger matrix are encoded alike when `divisor` is that of the
    whole (`nvfp4_divisor`); a divisor made for smaller values saturates.

    Returns `(codes uint8 [N, K/2], scales uint8 [N, K/16], divisor)`. Raises `ArtifactError` for
    infinity, NaN, matrices so small that the divisor overflows, and a given divisor that is not
    finite and positive.
    """
    values = require_matrix(values, "nvfp4")
    rows, columns = values.shape
    if columns % BLOCK:
        raise ValueError(f"nvfp4: {columns} columns are not a multiple of {BLOCK}")
    divisor = nvfp4_divisor([values]) if divisor is None else np.float32(divisor)
    require_divisor(divisor, "nvfp4")
    codes = np.empty((rows, columns // 2), np.uint8)
    scales = np.empty((rows, columns // BLOCK), np.uint8)

    def encode(block: slice) -> None:
        part = np.ascontiguousarray(values[block])
        largest = group_magnitudes(part, BLOCK)
        require_finite(largest, "nvfp4", block.start)
        codes[block], scales[block] = _encode_block(float32_values(part), largest, divisor)

    for_each_block(rows, columns, encode)
    return codes, scales, divisor


def _encode_block(
    part: np.ndarray, largest: np.ndarray, divisor: np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Encode float32 `[rows, K]` of known block maxima; returns packed codes and scale words."""
    with np.errstate(under="ignore", over="ignore"):
        words = e4m3_words(np.minimum((largest * divisor) / np.float32(6), E4M3_MAXIMUM))
        words[(words == 0) & (largest > 0)] = 1
        scale = np.where(words == 0, np.float32(1), E4M3_VALUES[words])
        scaled = (part * divisor).reshape(-1, BLOCK)
        scaled /= scale.reshape(-1, 1)
    codes = rounded_words(scaled, E2M1)
    zero = words.reshape(-1) == 0
    if zero.any():
        # Not even the sign of -0 survives in a block of zeros.
        codes[zero] = 0
    pairs = codes.view("<u2").reshape(part.shape[0], -1)
    return (pairs | (pairs >> np.uint16(4))).astype(np.uint8), words


def require_divisor(divisor: np.float32, name: str) -> None:
    """Raise `ArtifactError` unless the divisor is finite and positive."""
    if not (np.isfinite(divisor) and divisor > 0):
        raise ArtifactError(f"{name}: nvfp4 divisor is {divisor}, expected finite and above 0")


def check_nvfp4(fields: dict[str, np.ndarray], name: str) -> None:
    """Scan stored words; raises `ArtifactError` for a bad divisor or scale byte above 0x7e."""
    require_divisor(fields["divisor"], name)
    wrong = fields["scales"] > 0x7E
    if wrong.any():
        row, block = (int(index) for index in np.argwhere(wrong)[0])
        raise ArtifactError(
            f"{name}: row {row}, block {block}: scale byte {fields['scales'][row, block]:#04x} "
            "is negative or NaN"
        )
