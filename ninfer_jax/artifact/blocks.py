"""Row blocks: walk a large matrix so that temporaries stay in cache and memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ninfer_jax.errors import ArtifactError

ELEMENTS_PER_BLOCK = 1 << 21


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield consecutive row slices of about two million elements each.

    rows 34816, columns 5120: 409 rows a block, 86 blocks.
    """
    step = max(1, ELEMENTS_PER_BLOCK // max(1, columns))
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def require_matrix(values: np.ndarray, what: str) -> np.ndarray:
    """Return `values` as a float32 matrix `[N, K]`; ValueError for any other rank or type."""
    if values.ndim != 2 or not values.size:
        raise ValueError(f"{what}: expected a matrix [N, K], got shape {tuple(values.shape)}")
    if values.dtype != np.float32:
        raise ValueError(f"{what}: expected float32 values, got {values.dtype}")
    return values


def require_finite(values: np.ndarray, what: str, first_row: int) -> None:
    """Raise `ArtifactError` naming the first row of the block that holds infinity or NaN."""
    finite = np.isfinite(values)
    if not finite.all():
        row = first_row + int(np.argmin(finite.all(axis=1)))
        raise ArtifactError(f"{what}: row {row} holds infinity or NaN and cannot be encoded")
