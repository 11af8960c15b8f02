"""Largest magnitudes, found on bit patterns: without their signs, floats are ordered as integers.

NaN stands above infinity in that order, so a maximum shows both without a pass of its own.
"""

from __future__ import annotations

import numpy as np

from ninfer_jax.artifact.direct import bfloat16_values


def float32_values(part: np.ndarray) -> np.ndarray:
    """Return float32 `part` itself, or BF16 words (uint16) widened to a new array; exact."""
    return bfloat16_values(part) if part.dtype == np.uint16 else part


def group_magnitudes(part: np.ndarray, group: int) -> np.ndarray:
    """Largest magnitude of every `group` columns: float32 `[N, K / group]`, NaN if one is NaN.

    `part` is contiguous, float32 or BF16 words `[N, K]`; `group` is a power of two that divides K.
    """
    largest = _magnitude_bits(part)
    while group > 1:
        # Neighbours in pairs: a reduction over short rows would pay its overhead per group.
        largest = np.maximum(largest[0::2], largest[1::2])
        group //= 2
    return _denoted(largest).reshape(part.shape[0], -1)


def row_magnitudes(part: np.ndarray) -> np.ndarray:
    """Largest magnitude of every row: float32 `[N]`, NaN where a row holds NaN."""
    return _denoted(_magnitude_bits(part).reshape(part.shape).max(axis=1))


def _magnitude_bits(part: np.ndarray) -> np.ndarray:
    if part.dtype == np.uint16:
        return np.bitwise_and(part, 0x7FFF).reshape(-1)
    return np.bitwise_and(part.view(np.uint32), 0x7FFFFFFF).reshape(-1)


def _denoted(bits: np.ndarray) -> np.ndarray:
    return bfloat16_values(bits) if bits.dtype == np.uint16 else bits.view(np.float32)
