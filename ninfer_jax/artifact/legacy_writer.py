"""Writing one file of container version 1 or 2 from its directory and a stream of words."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.directory import StoredObject
from ninfer_jax.artifact.framing import entry_header, payload_start
from ninfer_jax.artifact.inventory import legacy_text
from ninfer_jax.artifact.legacy import LegacyDirectory
from ninfer_jax.artifact.writer import Produce, Progress
from ninfer_jax.errors import ArtifactError


def write_legacy(
    path: str | Path,
    directory: LegacyDirectory,
    chunks: Produce,
    progress: Progress = lambda count: None,
) -> Path:
    """Write a file of the version that `directory` has, and return its path.

    `chunks(object)` gives the bytes of an object as consecutive buffers; gaps become zeros.
    `progress` is told the payload bytes written. The file appears under its name when complete,
    and never replaces one. Raises `ArtifactError` when the name is taken or an object comes out in
    another size than the directory says.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise ArtifactError(f"{path}: exists already and is not overwritten")
    text = legacy_text(directory)
    head = entry_header(directory.version, len(text)) + text
    start = payload_start(directory.version, len(text))
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(head.ljust(start, b"\0"))
            position = 0
            for stored in directory.objects.values():
                file.write(bytes(stored.offset - position))
                _write_object(file, stored, chunks(stored))
                progress(stored.offset + stored.bytes - position)
                position = stored.offset + stored.bytes
            file.flush()
            os.fsync(file.fileno())
        _publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _write_object(file, stored: StoredObject, chunks: Iterable[Any]) -> None:
    written = 0
    for chunk in chunks:
        content = np.frombuffer(chunk, np.uint8)
        written += content.size
        if written <= stored.bytes:
            file.write(content)
    if written != stored.bytes:
        raise ArtifactError(
            f"object {stored.id!r}: {written} bytes produced, expected {stored.bytes}"
        )


def _publish(temporary: Path, final: Path) -> None:
    try:
        # A hard link fails where a rename would silently replace the target.
        os.link(temporary, final)
    except OSError:
        # The name was taken meanwhile, or this file system has no hard links.
        if os.path.lexists(final):
            raise ArtifactError(f"{final}: exists already and is not overwritten") from None
        os.rename(temporary, final)
