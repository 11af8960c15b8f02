"""Layout `row_scale_v1`: FP8 codes row by row, then one BF16 word per row at a multiple of 256.

[2, 4]: codes at bytes 0..7, scales at 256 and 258; 260 bytes.
"""

from __future__ import annotations

import numpy as np

from ninfer_jax.artifact.assemble import assembled
from ninfer_jax.artifact.blocks import for_each_block
from ninfer_jax.artifact.formats import TENSOR_ALIGNMENT
from ninfer_jax.errors import ArtifactError


def _scale_offset(format: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 2:
        raise ArtifactError(f"{format}: rank {len(shape)}, expected a matrix [N, K]")
    return -(-shape[0] * shape[1] // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


def encoded_bytes(format: str, shape: tuple[int, ...]) -> int:
    """Bytes of a stored matrix; raises `ArtifactError` unless the rank is 2."""
    return _scale_offset(format, shape) + 2 * shape[0]


def pack(format: str, fields: dict[str, np.ndarray], shape: tuple[int, ...]) -> bytes:
    """Return the payload of natural fields `codes` uint8 [N, K] and `scales` uint16 [N]."""
    offset = _scale_offset(format, shape)
    codes, scales = fields["codes"], fields["scales"]
    if codes.shape != shape or codes.dtype != np.uint8:
        raise ValueError(
            f"{format}: codes are {codes.dtype}{list(codes.shape)}, expected uint8{list(shape)}"
        )
    if scales.shape != shape[:1] or scales.dtype != np.uint16:
        raise ValueError(
            f"{format}: scales are {scales.dtype}{list(scales.shape)}, expected uint16{[shape[0]]}"
        )

    def fill(payload: np.ndarray) -> None:
        stored = payload[: codes.size].reshape(shape)

        def place(block: slice) -> None:
            stored[block] = codes[block]

        for_each_block(*shape, place)
        payload[offset:].view("<u2")[:] = scales

    return assembled(offset + 2 * shape[0], fill)


def unpack(
    format: str, shape: tuple[int, ...], payload: np.ndarray, begin: int, end: int
) -> dict[str, np.ndarray]:
    """Return the natural fields of rows `[begin, end)`; reads only the bytes of those rows."""
    columns = shape[1]
    offset = _scale_offset(format, shape)
    codes = payload[begin * columns : end * columns].reshape(end - begin, columns).copy()
    scales = payload[offset + 2 * begin : offset + 2 * end].copy().view("<u2")
    return {"codes": codes, "scales": scales}
