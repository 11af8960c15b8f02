"""Streams payload bytes over a set of files that become visible together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import numpy as np

from ninfer_jax.artifact.directory import StoredObject
from ninfer_jax.errors import ArtifactError

Span = tuple[bytes, int, int]


class PayloadWriter:
    """Writes objects in offset order into temporary files, then publishes them.

    `names[i]` is the final name of file i in `folder`; `spans[i]` is its head, the offset at which
    its payload begins, and the payload bytes it holds. Used as a context manager: leaving it
    without `publish()` removes what was written.
    """

    def __init__(self, folder: Path, names: list[str], spans: list[Span]):
        self._final = [folder / name for name in names]
        self._temporary = [folder / f".{name}.{os.getpid()}.tmp" for name in names]
        self._spans = spans
        self._index = -1
        self._file = None
        self._room = 0
        self._position = 0
        self._published = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        if not self._published:
            for path in self._temporary:
                path.unlink(missing_ok=True)

    def write(self, stored: StoredObject, data) -> None:
        """Append one object, with zeros up to its offset.

        Raises `ArtifactError` when the data has another size than the object.
        """
        content = np.frombuffer(data, np.uint8)
        if content.size != stored.bytes:
            raise ArtifactError(
                f"object {stored.id!r}: {content.size} bytes produced, expected {stored.bytes}"
            )
        self._append(np.zeros(stored.offset - self._position, np.uint8))
        self._append(content)

    def publish(self) -> list[Path]:
        """Give every file its name, the entry last; returns the paths, entry first.

        Raises `ArtifactError` when a file of that name has appeared meanwhile.
        """
        total = sum(size for _, _, size in self._spans)
        if self._position != total:
            raise ArtifactError(f"{self._position} payload bytes written, expected {total}")
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
        for path in self._temporary:
            path.unlink(missing_ok=True)
        self._published = True
        return list(self._final)

    def _append(self, content: np.ndarray) -> None:
        while content.size:
            if not self._room:
                self._next()
            count = min(content.size, self._room)
            self._file.write(content[:count])
            content = content[count:]
            self._room -= count
            self._position += count

    def _next(self) -> None:
        if self._file is not None:
            self._finish()
        self._index += 1
        head, start, self._room = self._spans[self._index]
        self._file = open(self._temporary[self._index], "xb")  # noqa: SIM115 - closed by _finish
        self._file.write(head.ljust(start, b"\0"))

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
