"""Layout `block_scale_k16_m128x4_v1`: NVFP4 codes row by row, swizzled scales, the divisor last.

N is a multiple of 128 and K of 64. The scale of row n, block g stands, with KT = K / 64, at

    (n // 128) * KT * 512 + (g // 4) * 512 + (n % 32) * 16 + (n % 128 // 32) * 4 + g % 4

of the scale plane. [256, 128] (KT = 2), n = 200, g = 6: 1024 + 512 + 128 + 8 + 2 = 1674.
"""

from __future__ import annotations

import numpy as np

from ninfer_jax.artifact.assemble import assembled
from ninfer_jax.artifact.blocks import for_each_block
from ninfer_jax.artifact.formats import TENSOR_ALIGNMENT
from ninfer_jax.artifact.nvfp4 import BLOCK, require_divisor
from ninfer_jax.errors import ArtifactError

TILE_ROWS = 128
TILE_COLUMNS = 64


def _scale_offset(format: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 2:
        raise ArtifactError(f"{format}: rank {len(shape)}, expected a matrix [N, K]")
    rows, columns = shape
    if rows % TILE_ROWS or columns % TILE_COLUMNS:
        raise ArtifactError(
            f"{format}: shape {list(shape)}, expected rows in multiples of {TILE_ROWS} and "
            f"columns in multiples of {TILE_COLUMNS}"
        )
    return -(-(rows * columns // 2) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


def encoded_bytes(format: str, shape: tuple[int, ...]) -> int:
    """Bytes of a stored matrix; raises `ArtifactError` for a shape the tiles do not divide."""
    return _scale_offset(format, shape) + shape[0] * shape[1] // BLOCK + 4


def swizzle(scales: np.ndarray) -> np.ndarray:
    """Reorder natural scale words `[N, K/16]` into the flat order of the scale plane."""
    rows, groups = scales.shape
    tiles = scales.reshape(rows // TILE_ROWS, 4, 32, groups // 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1)


def unswizzle(plane: np.ndarray, rows: int, groups: int) -> np.ndarray:
    """Reorder a scale plane of `rows` rows (a multiple of 128) to natural `[rows, groups]`."""
    tiles = plane.reshape(rows // TILE_ROWS, groups // 4, 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(rows, groups)


def pack(format: str, fields: dict[str, np.ndarray], shape: tuple[int, ...]) -> bytes:
    """Return the payload of natural fields `codes` [N, K/2], `scales` [N, K/16], `divisor` []."""
    offset = _scale_offset(format, shape)
    rows, columns = shape
    codes, scales = fields["codes"], fields["scales"]
    for field, words, expected in (
        ("codes", codes, (rows, columns // 2)),
        ("scales", scales, (rows, columns // BLOCK)),
    ):
        if words.shape != expected or words.dtype != np.uint8:
            raise ValueError(
                f"{format}: {field} are {words.dtype}{list(words.shape)}, "
                f"expected uint8{list(expected)}"
            )
    divisor = np.asarray(fields["divisor"], "<f4").reshape(1)

    def fill(payload: np.ndarray) -> None:
        stored = payload[: codes.size].reshape(codes.shape)

        def place(block: slice) -> None:
            stored[block] = codes[block]

        for_each_block(rows, columns // 2, place)
        payload[offset : offset + scales.size] = swizzle(scales)
        payload[offset + scales.size :] = divisor.view(np.uint8)

    return assembled(encoded_bytes(format, shape), fill)


def unpack(
    format: str, shape: tuple[int, ...], payload: np.ndarray, begin: int, end: int
) -> dict[str, np.ndarray]:
    """Return the natural fields of rows `[begin, end)` with the divisor of the whole object.

    Reads the scale tiles that the rows touch. Raises `ArtifactError` for a bad divisor.
    """
    offset = _scale_offset(format, shape)
    rows, columns = shape
    groups = columns // BLOCK
    codes = payload[begin * columns // 2 : end * columns // 2].reshape(end - begin, columns // 2)
    first = begin // TILE_ROWS * TILE_ROWS
    last = -(-end // TILE_ROWS) * TILE_ROWS
    plane = payload[offset + first * groups : offset + last * groups]
    scales = unswizzle(plane, last - first, groups)[begin - first : end - first]
    divisor = payload[offset + rows * groups :][:4].copy().view("<f4").reshape(())
    require_divisor(divisor[()], format)
    return {
        "codes": codes.copy(),
        "scales": np.ascontiguousarray(scales),
        "divisor": divisor,
    }
