"""Rewriting an artifact as version 3: a new directory and a new split, every word as it was.

The payload is copied as one range of bytes, gaps included; only the directory is made. A file of
version 3 is split anew in the same way.
"""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ninfer_jax.artifact.directory import Directory, FileEntry, ResourceObject
from ninfer_jax.artifact.formats import TENSOR_ALIGNMENT
from ninfer_jax.artifact.framing import PAGE, entry_header, part_header, payload_start
from ninfer_jax.artifact.inventory import payload_bytes
from ninfer_jax.artifact.legacy import LegacyDirectory, upgrade_directory
from ninfer_jax.artifact.parse import parse_directory
from ninfer_jax.artifact.payload import Payload
from ninfer_jax.artifact.payload_writer import PayloadWriter
from ninfer_jax.artifact.reader import Artifact, open_container
from ninfer_jax.artifact.writer import DEFAULT_FILE_LIMIT, layout_files
from ninfer_jax.errors import ArtifactError

TEMPLATE = "chat_template.jinja"
CHUNK_BYTES = 64 << 20

Progress = Callable[[int], None]


def plan_upgrade(
    source: Directory | LegacyDirectory, template_bytes: int | None = None
) -> Directory:
    """Return the version 3 directory of a source; the payload is one file, not yet split.

    Object ids, offsets and order stay. With `template_bytes`, a chat template of that size is
    appended behind the payload, at a multiple of 256, and its record moves to the end; the bytes
    of the old template stay where they are, unreferenced. Raises `ArtifactError` for a version 1
    or 2 directory of an unknown identity or inventory.
    """
    size = payload_bytes(source.objects)
    directory = source
    if isinstance(source, LegacyDirectory):
        directory = upgrade_directory(source, size)
    directory = dataclasses.replace(directory, files=(FileEntry(None, size),))
    if template_bytes is None:
        return directory
    id = directory.components["text"].resources.get(TEMPLATE)
    if id is None:
        raise ArtifactError(f"component 'text' has no resource {TEMPLATE!r} to replace")
    offset = -(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
    objects = {name: stored for name, stored in directory.objects.items() if name != id}
    objects[id] = ResourceObject(id, offset, template_bytes)
    files = (FileEntry(None, offset + template_bytes),)
    return dataclasses.replace(directory, objects=objects, files=files)


def upgrade_artifact(
    source: str | Path,
    destination: str | Path,
    *,
    file_limit: int = DEFAULT_FILE_LIMIT,
    chat_template: bytes | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write `source`, of any version, as version 3; returns the files, entry first.

    The artifact's own chat template is kept unless `chat_template` is given. At most 64 MiB are
    copied at a time; `progress` is called with the size of every copy. A new artifact id is
    drawn. Raises `ArtifactError` for a bad source, an empty template, and a name that is taken.
    """
    if chat_template is not None and not chat_template:
        raise ArtifactError("the chat template is empty, expected at least one byte")
    destination = Path(destination)
    container = open_container(source)
    try:
        try:
            planned = plan_upgrade(
                container.directory, None if chat_template is None else len(chat_template)
            )
        except ArtifactError as error:
            raise ArtifactError(f"{container.path.name}: {error.message}") from None
        total = planned.files[0].payload_bytes
        text, files = layout_files(planned, total, destination.name, file_limit)
        # The reader's own checks refuse a directory that could not be read back.
        parse_directory(json.loads(text), destination.name)
        names = [entry.path or destination.name for entry in files]
        for name in names:
            if os.path.lexists(destination.parent / name):
                raise ArtifactError(
                    f"{destination.parent / name}: exists already and is not overwritten"
                )
        identity = uuid.uuid4().bytes
        spans = [
            (part_header(index, identity), PAGE, entry.payload_bytes)
            for index, entry in enumerate(files)
        ]
        head = entry_header(3, len(text), identity) + text
        spans[0] = (head, payload_start(3, len(text)), files[0].payload_bytes)
        with PayloadWriter(destination.parent, names, spans) as writer:
            copied = payload_bytes(container.directory.objects)
            for offset, content in _ranges(container.payload, copied):
                _append(writer, offset, content, progress)
            if chat_template is not None:
                offset = total - len(chat_template)
                _append(writer, offset, np.frombuffer(chat_template, np.uint8), progress)
            return writer.publish()
    finally:
        container.payload.close()


def compare_words(left: Artifact, right: Artifact) -> Iterator[str]:
    """Yield one message per object that one artifact lacks or whose bytes differ.

    Objects are matched by id, as an upgrade keeps them; a replaced template is such a difference.
    """
    for id in dict.fromkeys((*left.objects, *right.objects)):
        for artifact in (left, right):
            if id not in artifact.objects:
                yield f"object {id!r}: absent from {artifact.path.name}"
                break
        else:
            first, second = left.objects[id], right.objects[id]
            kinds = [dataclasses.replace(stored, offset=0) for stored in (first, second)]
            if kinds[0] != kinds[1]:
                yield f"object {id!r}: another shape, format or size in {right.path.name}"
                continue
            at = _first_difference(left, right, id)
            if at is not None:
                yield f"object {id!r}: byte {at} differs in {right.path.name}"


def _ranges(payload: Payload, size: int) -> Iterator[tuple[int, np.ndarray]]:
    for offset in range(0, size, CHUNK_BYTES):
        yield offset, payload.read(offset, min(CHUNK_BYTES, size - offset))


def _append(
    writer: PayloadWriter, offset: int, content: np.ndarray, progress: Progress | None
) -> None:
    # The writer takes objects; a range of the payload is one to it.
    writer.write(ResourceObject(f"payload bytes from {offset}", offset, content.size), content)
    if progress is not None:
        progress(content.size)


def _first_difference(left: Artifact, right: Artifact, id: str) -> int | None:
    size = left.objects[id].bytes
    for offset in range(0, size, CHUNK_BYTES):
        end = min(offset + CHUNK_BYTES, size)
        first, second = (
            np.frombuffer(artifact.object_words(id, offset, end), np.uint8)
            for artifact in (left, right)
        )
        unequal = first != second
        if unequal.any():
            return offset + int(np.argmax(unequal))
    return None
