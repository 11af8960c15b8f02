"""Streams payload bytes over a set of files that become visible together."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np

from ninfer_jax.artifact.directory import StoredObject
from ninfer_jax.artifact.staging import sync_path
from ninfer_jax.errors import ArtifactError

Span = tuple[bytes, int, int]


class PayloadWriter:
    """Writes objects in offset order into a staging folder, then publishes the files.

    Args:
      folder: where the files finally are.
      staging: where they are until then, on the same disk.
      names: final name of each file.
      spans: of each file, its head, the offset at which its payload begins, and the payload
        bytes it holds.
      position: payload bytes that an earlier run wrote into the same staging folder.
    """

    def __init__(
        self, folder: Path, staging: Path, names: list[str], spans: list[Span], position: int = 0
    ):
        self._final = [folder / name for name in names]
        self._temporary = [staging / name for name in names]
        self._spans = spans
        self._index = -1
        self._file = None
        self._room = 0
        self.position = 0
        if position:
            self._take_up(position)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, stored: StoredObject, chunks: Iterable[Any]) -> None:
        """Append one object, given as consecutive buffers, with zeros up to its offset.

        Raises `ArtifactError` when the data has another size than the object.
        """
        self._append(np.zeros(stored.offset - self.position, np.uint8))
        written = 0
        for chunk in chunks:
            content = np.frombuffer(chunk, np.uint8)
            written += content.size
            if written > stored.bytes:
                break
            self._append(content)
        if written != stored.bytes:
            raise ArtifactError(
                f"object {stored.id!r}: {written} bytes produced, expected {stored.bytes}"
            )

    def sync(self) -> None:
        """Forces everything to the disk: what is recorded afterwards can be relied on."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def publish(self) -> list[Path]:
        """Give every file its name, the entry last; returns the paths, entry first.

        Raises `ArtifactError` when a file of that name has appeared meanwhile.
        """
        total = sum(size for _, _, size in self._spans)
        if self.position != total:
            raise ArtifactError(f"{self.position} payload bytes written, expected {total}")
        if self._file is not None:
            self._finish()
        done: list[Path] = []
        try:
            for temporary, final in reversed(list(zip(self._temporary, self._final, strict=True))):
                _publish(temporary, final)
                done.append(final)
        except FileExistsError:
            for path in done:
                path.unlink(missing_ok=True)
            raise ArtifactError(f"{final}: exists already and is not overwritten") from None
        sync_path(self._final[0].parent)
        return list(self._final)

    def _append(self, content: np.ndarray) -> None:
        while content.size:
            if not self._room:
                self._next()
            count = min(content.size, self._room)
            self._file.write(content[:count])
            content = content[count:]
            self._room -= count
            self.position += count

    def _next(self) -> None:
        if self._file is not None:
            self._finish()
        self._index += 1
        head, start, self._room = self._spans[self._index]
        self._file = open(self._temporary[self._index], "wb")  # noqa: SIM115 - closed by _finish
        self._file.write(head.ljust(start, b"\0"))

    def _take_up(self, position: int) -> None:
        """Continues behind `position`, in the file that holds the byte before it.

        Spans of 4096 and 256 payload bytes, position 4096: file 0, with no room left.
        """
        ends = list(itertools.accumulate(size for _, _, size in self._spans))
        self._index = bisect.bisect_left(ends, position)
        _, start, size = self._spans[self._index]
        self._room = ends[self._index] - position
        end = start + size - self._room
        self._file = open(self._temporary[self._index], "r+b")  # noqa: SIM115 - closed by _finish
        self._file.truncate(end)
        self._file.seek(end)
        self.position = position

    def _finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None


def _publish(temporary: Path, final: Path) -> None:
    """Name a finished file; raises FileExistsError rather than replace another one."""
    try:
        # A hard link fails where a rename would silently replace the target.
        os.link(temporary, final)
    except FileExistsError:
        raise
    except OSError:
        # This file system has no hard links: look, then rename.
        if os.path.lexists(final):
            raise FileExistsError(final) from None
        os.rename(temporary, final)
