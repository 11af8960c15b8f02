"""SHA-256 of the files of a set, in step with somebody who reads the same bytes."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

import numpy as np

STEP_BYTES = 8 << 20


class FileHashes:
    """Hashes files one after the other, from mapped pages that others need soon or just needed.

    Two files of 100 bytes: `advance(150)` has read the first and half of the second.
    """

    def __init__(self, files: list[Path]):
        self._files = files
        self._digests = {file.name: hashlib.sha256() for file in files}
        self._index = 0
        self._content: np.ndarray | None = None
        self._read = 0

    def advance(self, position: int) -> None:
        """Reads on until `position` bytes of all files together were read."""
        while self._read < position and self._step(position - self._read):
            pass

    def finish(self) -> dict[str, str]:
        """Reads the rest; returns the digests by file name."""
        while self._step(STEP_BYTES):
            pass
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def _step(self, count: int) -> bool:
        """Reads up to `count` bytes of the current file; False behind the last one."""
        if self._index == len(self._files):
            return False
        file = self._files[self._index]
        if self._content is None:
            with file.open("rb") as opened:
                mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            self._content = np.frombuffer(mapped, np.uint8)
        taken = self._content[: min(count, STEP_BYTES)]
        self._digests[file.name].update(taken)
        self._content = self._content[taken.size :]
        self._read += taken.size
        if not self._content.size:
            self._content = None
            self._index += 1
        return True
