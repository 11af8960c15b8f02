"""Layout `contiguous_le_v1`: C-order words, little endian, no padding, any rank 0..16.

Shape [2, 3] of bf16: 12 bytes, element (1, 0) at byte 6.
"""

from __future__ import annotations

import math

import numpy as np

from ninfer_jax.artifact.direct import WORD_TYPES
from ninfer_jax.errors import ArtifactError

MAXIMUM_RANK = 16


def encoded_bytes(format: str, shape: tuple[int, ...]) -> int:
    """Bytes of a stored tensor; raises `ArtifactError` for a rank above 16."""
    if len(shape) > MAXIMUM_RANK:
        raise ArtifactError(f"{format}: rank {len(shape)} is above {MAXIMUM_RANK}")
    return math.prod(shape) * WORD_TYPES[format].itemsize


def pack(format: str, fields: dict[str, np.ndarray], shape: tuple[int, ...]) -> bytes:
    """Return the payload of `fields["words"]`, whose word type must be that of the format."""
    words = np.asarray(fields["words"])
    expected = WORD_TYPES[format]
    if words.shape != shape or words.dtype != expected:
        raise ValueError(
            f"{format}: words are {words.dtype}{list(words.shape)}, "
            f"expected {expected}{list(shape)}"
        )
    return words.astype(expected, order="C", copy=False).tobytes()


def unpack(
    format: str, shape: tuple[int, ...], payload: np.ndarray, begin: int, end: int
) -> dict[str, np.ndarray]:
    """Return elements `[begin, end)` in C order as a flat, writable array of words."""
    word = WORD_TYPES[format]
    return {"words": payload[begin * word.itemsize : end * word.itemsize].copy().view(word)}
