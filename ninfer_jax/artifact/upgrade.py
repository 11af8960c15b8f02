"""Rewriting an artifact as version 3: a new directory and a new split, every word as it was.

Objects keep their ids and offsets. A file of version 3 is split anew in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.directory import Directory, FileEntry, ResourceObject, StoredObject
from ninfer_jax.artifact.formats import TENSOR_ALIGNMENT
from ninfer_jax.artifact.legacy import LegacyDirectory, upgrade_directory
from ninfer_jax.artifact.reader import Artifact, open_container
from ninfer_jax.artifact.sources import PayloadSource
from ninfer_jax.artifact.writer import (
    DEFAULT_FILE_LIMIT,
    Progress,
    payload_end,
    write_directory,
)
from ninfer_jax.errors import ArtifactError

TEMPLATE = "chat_template.jinja"


def plan_upgrade(
    source: Directory | LegacyDirectory, template_bytes: int | None = None
) -> Directory:
    """Return the version 3 directory of a source; the payload is one file, not yet split.

    Object ids, offsets and order stay. With `template_bytes`, a chat template of that size is
    appended behind the payload, at a multiple of 256, and its record moves to the end; where the
    old one was, a gap remains. Raises `ArtifactError` for a version 1
    or 2 directory of an unknown identity or inventory.
    """
    size = payload_end(source.objects)
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
    progress: Progress = lambda count: None,
) -> list[Path]:
    """Write `source`, of any version, as version 3; returns the files, entry first.

    The artifact's own chat template is kept unless `chat_template` is given. Words are copied 64
    MiB at a time; bytes that belong to no object become zeros. `progress` is told the payload
    bytes written. A new artifact id is drawn. Raises `ArtifactError` for a bad source, an empty
    template, and a name that is taken.
    """
    if chat_template is not None and not chat_template:
        raise ArtifactError("the chat template is empty, expected at least one byte")
    container = open_container(source)
    payload = PayloadSource(container.payload)
    try:
        try:
            directory = plan_upgrade(
                container.directory, None if chat_template is None else len(chat_template)
            )
        except ArtifactError as error:
            raise ArtifactError(f"{container.path.name}: {error.message}") from None
        template_id = directory.components["text"].resources.get(TEMPLATE)

        def produce(stored: StoredObject) -> Iterable[Any]:
            if chat_template is not None and stored.id == template_id:
                return [chat_template]
            return payload.chunks(stored)

        return write_directory(
            destination, directory, produce, file_limit=file_limit, progress=progress
        )
    finally:
        payload.close()


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


def _first_difference(left: Artifact, right: Artifact, id: str) -> int | None:
    offset = 0
    for first, second in zip(left.object_chunks(id), right.object_chunks(id), strict=True):
        unequal = first != second
        if unequal.any():
            return offset + int(np.argmax(unequal))
        offset += first.size
    return None
