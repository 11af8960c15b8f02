"""Row blocks: walk a large matrix on every core, with temporaries of bounded size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np

from ninfer_jax.errors import ArtifactError

ELEMENTS_PER_BLOCK = 1 << 21
# Long enough that threads seldom wait for the interpreter lock between two array operations, short
# enough that the temporaries of a thread (about 20 bytes an element) stay in the last cache.
ELEMENTS_PER_TASK = 1 << 19


def row_blocks(rows: int, columns: int, elements: int = ELEMENTS_PER_BLOCK) -> Iterator[slice]:
    """Yield consecutive row slices of about `elements` elements each, at least one row.

    rows 34816, columns 5120: 409 rows a block, 86 blocks.
    """
    step = max(1, elements // max(1, columns))
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def for_each_block(rows: int, columns: int, work: Callable[[slice], None]) -> None:
    """Call `work(block)` for every block of rows, on as many threads as there are cores.

    `work` writes to rows of its block only. Of several errors the one of the first row is raised,
    so that a message does not depend on the order of the threads.
    """
    blocks = list(row_blocks(rows, columns, ELEMENTS_PER_TASK))
    threads = min(os.cpu_count() or 1, len(blocks))
    if threads < 2:
        for block in blocks:
            work(block)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, blocks):
            pass


def require_matrix(values: np.ndarray, what: str) -> np.ndarray:
    """Return a matrix `[N, K]` as float32 values or, for BF16, as its uint16 words.

    uint16 is taken as BF16 words. ValueError for any other rank or type.
    """
    if values.ndim != 2 or not values.size:
        raise ValueError(f"{what}: expected a matrix [N, K], got shape {tuple(values.shape)}")
    if values.dtype == ml_dtypes.bfloat16:
        return values.view(np.uint16)
    if values.dtype not in (np.float32, np.uint16):
        raise ValueError(
            f"{what}: expected float32, bfloat16 or BF16 words in uint16, got {values.dtype}"
        )
    return values


def require_finite(largest: np.ndarray, what: str, first_row: int) -> None:
    """Raise `ArtifactError` naming the first row `[N, ...]` that holds infinity or NaN."""
    finite = np.isfinite(largest)
    if not finite.all():
        row = first_row + int(np.argmin(finite.reshape(finite.shape[0], -1).all(axis=1)))
        raise ArtifactError(f"{what}: row {row} holds infinity or NaN and cannot be encoded")
