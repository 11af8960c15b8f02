"""Payload assembly: fill `bytes` in place, so that a large object exists once in memory."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np


def assembled(total: int, fill: Callable[[np.ndarray], None]) -> bytes:
    """Return `total` bytes, zero but for what `fill` writes to the uint8 array `[total]` it gets.

    `fill` must not keep the array: while a view of it lives, the bytes are copied.
    """
    # A stream lends its own buffer and hands the same one out as bytes; an array would copy it.
    stream = io.BytesIO(bytes(total))
    fill(np.frombuffer(stream.getbuffer(), np.uint8))
    return stream.getvalue()
