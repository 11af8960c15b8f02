"""The logical payload: memory-mapped files laid end to end.

Continuation files are opened when a range first touches them. A range inside one file is returned
without a copy; one that straddles files is concatenated.
"""

from __future__ import annotations

import mmap
import os
import stat
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer_jax.artifact.framing import PAGE, check_part_header
from ninfer_jax.errors import ArtifactError


class MappedFile:
    """A regular file mapped read-only; `size` is its length when it was opened.

    Raises `ArtifactError` when the file is missing, unreadable or not a regular file.
    """

    def __init__(self, path: Path, where: str):
        self.where = where
        try:
            # Opening a named pipe would wait for a writer: look before opening.
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode):
                raise ArtifactError(f"{where}: not a regular file")
            self._file = open(path, "rb")  # noqa: SIM115 - closed by close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ArtifactError(f"{where}: cannot open {str(path)!r}: {reason}") from None
        self.size = os.fstat(self._file.fileno()).st_size
        self._bytes: np.ndarray | None = None

    def head(self, count: int) -> bytes:
        """Return up to `count` first bytes."""
        return os.pread(self._file.fileno(), count, 0)

    def read(self, offset: int, count: int) -> np.ndarray:
        """Return a read-only view of `[offset, offset + count)`, which lies inside `size`.

        Raises `ArtifactError` when the file has shrunk since it was opened: a mapping of bytes
        that no longer exist must not be touched.
        """
        available = os.fstat(self._file.fileno()).st_size - offset
        if available < count:
            raise ArtifactError(
                f"{self.where}: short read at {offset}: wanted {count} bytes, got "
                f"{max(0, available)}"
            )
        if count == 0:
            return np.empty(0, np.uint8)
        if self._bytes is None:
            mapping = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ)
            self._bytes = np.frombuffer(mapping, np.uint8)
        return self._bytes[offset : offset + count]

    def close(self) -> None:
        """Close the descriptor; views already handed out stay valid."""
        self._file.close()
        self._bytes = None


@dataclass(frozen=True)
class Segment:
    """One file of the payload: where its bytes stand in the logical payload and in the file."""

    path: Path
    begin: int
    end: int
    start: int


class Payload:
    """Random access to the logical payload `[0, size)` of one artifact.

    Segment 0 is the entry file, already open; the others are parts named by the directory.
    """

    def __init__(self, entry: MappedFile, segments: list[Segment], artifact_id: bytes | None):
        self._segments = segments
        self._files: list[MappedFile | None] = [entry] + [None] * (len(segments) - 1)
        self._artifact_id = artifact_id
        self._begins = [segment.begin for segment in segments]
        self.size = segments[-1].end

    def read(self, offset: int, count: int) -> np.ndarray:
        """Return the bytes `[offset, offset + count)` as uint8; `ArtifactError` if they are short.

        Segments of 4096 and 256 bytes, offset 256, count 4096: 3840 bytes of the entry, then 256 of
        the part.
        """
        if offset > self.size or count > self.size - offset:
            raise ArtifactError(
                f"range [{offset}, {offset + count}) is beyond the payload of {self.size} bytes"
            )
        pieces = []
        index = max(0, bisect_right(self._begins, offset) - 1)
        while count:
            segment = self._segments[index]
            taken = min(count, segment.end - offset)
            pieces.append(self._open(index).read(segment.start + offset - segment.begin, taken))
            offset, count, index = offset + taken, count - taken, index + 1
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)

    def open_all(self) -> None:
        """Open and check every continuation file now."""
        for index in range(len(self._segments)):
            self._open(index)

    def close(self) -> None:
        """Close every open file; views already handed out stay valid."""
        for file in self._files:
            if file is not None:
                file.close()

    def _open(self, index: int) -> MappedFile:
        file = self._files[index]
        if file is None:
            segment = self._segments[index]
            where = f"part file {segment.path.name!r}"
            file = MappedFile(segment.path, where)
            try:
                check_part_header(file.head(32), index, self._artifact_id or b"", where)
                expected = PAGE + segment.end - segment.begin
                if file.size != expected:
                    problem = "truncated" if file.size < expected else "trailing data"
                    raise ArtifactError(
                        f"{where}: {problem}: {file.size} bytes, expected {expected}"
                    )
            except ArtifactError:
                file.close()
                raise
            self._files[index] = file
        return file
