"""Direct formats: one stored word per element (`bf16`, `fp32`, `int32`).

Formats are defined on words: signed zeros, subnormals and NaN payloads pass through unchanged.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

WORD_TYPES: dict[str, np.dtype] = {
    "bf16": np.dtype("<u2"),
    "fp32": np.dtype("<f4"),
    "int32": np.dtype("<i4"),
}


def bfloat16_values(words: np.ndarray) -> np.ndarray:
    """Widen BF16 words (uint16, any shape) to the float32 they denote; exact."""
    wide = words.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def bfloat16_words(values: np.ndarray) -> np.ndarray:
    """Round float32 values to BF16 words (uint16), to nearest, ties to even."""
    # Not ascontiguousarray, which makes a vector of a scalar.
    return np.asarray(values, np.float32, order="C").astype(ml_dtypes.bfloat16).view(np.uint16)


def decode_direct(format: str, fields: dict[str, np.ndarray]) -> np.ndarray:
    """Return the values of a direct tensor: float32, or int32 for `int32`."""
    words = fields["words"]
    if format == "bf16":
        return bfloat16_values(words)
    return words.astype(np.float32 if format == "fp32" else np.int32, copy=True)


def encode_direct(format: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the fields of a direct tensor; float32 to `bf16` rounds to nearest, ties to even.

    Raises ValueError when an integer does not fit `int32`.
    """
    if format == "bf16":
        return {"words": bfloat16_words(values)}
    if format == "fp32":
        return {"words": np.asarray(values, np.float32)}
    limits = np.iinfo(np.int32)
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        raise ValueError(f"int32: values span {values.min()}..{values.max()}, beyond 32 bits")
    return {"words": np.asarray(values).astype(np.int32)}
