"""FP8 E4M3FN matrices with one BF16 multiplier per row (`fp8_e4m3fn_row_bf16`).

    w[n, k] = f32(e4m3fn(code[n, k]) * bf16(scale[n]))      exact in binary32

E4M3FN: sign, 4 exponent bits (bias 7), 3 mantissa bits; largest finite value 448 (word 0x7e), NaN
at 0x7f and 0xff, no infinity. Fields in natural order: `codes` uint8 [N, K], `scales` uint16
(BF16 bits) [N].
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ninfer_jax.artifact.blocks import require_finite, require_matrix, row_blocks
from ninfer_jax.artifact.direct import bfloat16_values, bfloat16_words
from ninfer_jax.errors import ArtifactError

E4M3_MAXIMUM = np.float32(448)
E4M3_VALUES: np.ndarray = (
    np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
)


def e4m3_words(values: np.ndarray) -> np.ndarray:
    """Round float32 values to E4M3FN words, ties to the even word, saturating at 448."""
    clamped = np.clip(values, -E4M3_MAXIMUM, E4M3_MAXIMUM)
    return clamped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def decode_fp8(fields: dict[str, np.ndarray]) -> np.ndarray:
    """Return the float32 matrix `[N, K]` that the fields denote; exact."""
    codes, scales = fields["codes"], bfloat16_values(fields["scales"])
    values = np.empty(codes.shape, np.float32)
    for block in row_blocks(*codes.shape):
        with np.errstate(all="ignore"):
            np.multiply(E4M3_VALUES[codes[block]], scales[block, None], out=values[block])
    return values


def encode_fp8_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise each row by its maximum (`MAXABS_BF16S_RECIP_E4M3FN_RNE_V1`).

    The input is first rounded to BF16; then, per row,

        scale = bf16(f32(amax / 448)), the smallest subnormal when that rounds to zero
        code  = e4m3fn(clamp(f32(x * f32(1 / scale)), -448, 448))

    Returns `(codes uint8 [N, K], scales uint16 [N])`. Raises `ArtifactError` for infinity and NaN,
    before or after rounding to BF16.
    """
    values = require_matrix(values, "fp8_e4m3fn_row_bf16")
    rows, columns = values.shape
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty(rows, np.uint16)
    for block in row_blocks(rows, columns):
        with np.errstate(over="ignore"):
            part = bfloat16_values(bfloat16_words(values[block]))
        require_finite(part, "fp8_e4m3fn_row_bf16", block.start)
        largest = np.abs(part).max(axis=1)
        words = bfloat16_words((largest.astype(np.float64) / 448).astype(np.float32))
        words[(words == 0) & (largest > 0)] = 1
        inverse = np.zeros_like(largest)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.divide(np.float32(1), bfloat16_values(words), out=inverse, where=words != 0)
            # A scale below 2^-128 has no finite reciprocal: 0 * infinity must stay zero.
            scaled = np.where(part == 0, part, part * inverse[:, None])
        encoded = e4m3_words(scaled)
        encoded[words == 0] = 0
        codes[block] = encoded
        scales[block] = words
    return codes, scales


def check_fp8(fields: dict[str, np.ndarray], name: str) -> None:
    """Scan stored words; raises `ArtifactError` naming the first row that breaks a rule.

    No code is NaN, row scales are finite with a clear sign bit, and a row of scale 0 holds only
    zeros.
    """
    codes, scales = fields["codes"], fields["scales"]
    bad = scales >= 0x7F80
    if bad.any():
        row = int(np.argmax(bad))
        raise ArtifactError(
            f"{name}: row {row}: row scale word {scales[row]:#06x} is negative, infinite or NaN"
        )
    for block in row_blocks(*codes.shape):
        magnitude = codes[block] & 0x7F
        wrong = (magnitude == 0x7F) | ((scales[block, None] == 0) & (magnitude != 0))
        if wrong.any():
            row, column = (int(index) for index in np.argwhere(wrong)[0])
            what = "NaN code" if magnitude[row, column] == 0x7F else "non-zero code under scale 0"
            raise ArtifactError(
                f"{name}: row {block.start + row}, column {column}: {what} "
                f"(word {codes[block][row, column]:#04x})"
            )
