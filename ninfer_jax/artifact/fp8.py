"""FP8 E4M3FN matrices with one BF16 multiplier per row (`fp8_e4m3fn_row_bf16`).

    w[n, k] = f32(e4m3fn(code[n, k]) * bf16(scale[n]))      exact in binary32

E4M3FN: sign, 4 exponent bits (bias 7), 3 mantissa bits; largest finite value 448 (word 0x7e), NaN
at 0x7f and 0xff, no infinity. Fields in natural order: `codes` uint8 [N, K], `scales` uint16
(BF16 bits) [N].
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ninfer_jax.artifact.blocks import (
    for_each_block,
    require_finite,
    require_matrix,
    row_blocks,
)
from ninfer_jax.artifact.direct import bfloat16_values, bfloat16_words
from ninfer_jax.artifact.magnitudes import row_magnitudes
from ninfer_jax.artifact.small_floats import E4M3FN, rounded_words
from ninfer_jax.errors import ArtifactError

E4M3_MAXIMUM = np.float32(448)
E4M3_VALUES: np.ndarray = (
    np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
)


def e4m3_words(values: np.ndarray) -> np.ndarray:
    """Round float32 values, not NaN, to E4M3FN words, ties to the even word, saturating at 448."""
    return rounded_words(np.ascontiguousarray(values), E4M3FN)


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

    `values` `[N, K]` are float32, `ml_dtypes.bfloat16`, or BF16 words in uint16. Rows do not depend
    on each other, so a matrix fed in row blocks gives the same words.

    Returns `(codes uint8 [N, K], scales uint16 [N])`. Raises `ArtifactError` for infinity and NaN,
    before or after rounding to BF16.
    """
    values = require_matrix(values, "fp8_e4m3fn_row_bf16")
    rows, columns = values.shape
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty(rows, np.uint16)

    def encode(block: slice) -> None:
        part = np.ascontiguousarray(values[block])
        if part.dtype != np.uint16:
            with np.errstate(over="ignore"):
                part = bfloat16_words(part)
        codes[block], scales[block] = _encode_block(part, block.start)

    for_each_block(rows, columns, encode)
    return codes, scales


def _encode_block(part: np.ndarray, first_row: int) -> tuple[np.ndarray, np.ndarray]:
    """Encode BF16 words `[rows, K]`; returns code and scale words."""
    largest = row_magnitudes(part)
    require_finite(largest, "fp8_e4m3fn_row_bf16", first_row)
    # binary64 division rounded once more is the correctly rounded binary32 quotient (53 >= 2*24+2).
    words = bfloat16_words((largest.astype(np.float64) / 448).astype(np.float32))
    words[(words == 0) & (largest > 0)] = 1
    inverse = np.zeros_like(largest)
    scaled = bfloat16_values(part)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.divide(np.float32(1), bfloat16_values(words), out=inverse, where=words != 0)
        scaled *= inverse[:, None]
    boundless = np.isinf(inverse)
    if boundless.any():
        # A scale up to 2^-128 has no finite reciprocal: 0 * infinity must stay that zero.
        zero = (part & 0x7FFF) == 0
        np.copyto(scaled, bfloat16_values(part), where=zero & boundless[:, None])
    codes = rounded_words(scaled, E4M3FN)
    codes[words == 0] = 0
    return codes, words


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
