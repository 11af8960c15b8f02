"""Rewriting an artifact as version 3: a new directory and a new split, every word as it was.

Every object keeps its place and its bytes; only the directory is made. A file of version 3 is split
anew in the same way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ninfer_jax.artifact.directory import (
    Directory,
    FileEntry,
    ResourceObject,
    StoredObject,
    payload_end,
)
from ninfer_jax.artifact.formats import TENSOR_ALIGNMENT
from ninfer_jax.artifact.legacy import LegacyDirectory, upgrade_directory
from ninfer_jax.artifact.reader import Artifact, open_artifact
from ninfer_jax.artifact.staging import file_stamp
from ninfer_jax.artifact.writer import DEFAULT_FILE_LIMIT, Progress, write_directory
from ninfer_jax.errors import ArtifactError

TEMPLATE = "chat_template.jinja"


def plan_upgrade(
    source: Directory | LegacyDirectory, template_bytes: int | None = None
) -> Directory:
    """Return the version 3 directory of a source; the payload is one file, not yet split.

    Object ids, offsets and order stay. With `template_bytes`, a chat template of that size is
    appended behind the payload, at a multiple of 256, and its record moves to the end; the place
    of the old template stays empty. Raises `ArtifactError` for a version 1
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

    The artifact's own chat template is kept unless `chat_template` is given. A new artifact id is
    drawn. An interrupted call goes on where it stopped when it is made again. Raises
    `ArtifactError` for a bad source, an empty template, and a name that is taken.
    """
    if chat_template is not None and not chat_template:
        raise ArtifactError("the chat template is empty, expected at least one byte")
    with open_artifact(source) as artifact:
        try:
            planned = plan_upgrade(
                artifact.directory, None if chat_template is None else len(chat_template)
            )
            artifact.open_all_files()
        except ArtifactError as error:
            raise ArtifactError(f"{artifact.path.name}: {error.message}") from None
        new = None if chat_template is None else planned.components["text"].resources[TEMPLATE]

        def produce(stored: StoredObject) -> Iterable[Any]:
            return (chat_template,) if stored.id == new else artifact.object_chunks(stored.id)

        return write_directory(
            destination,
            planned,
            produce,
            file_limit=file_limit,
            source=_origin(artifact, chat_template),
            progress=progress,
        )


def _origin(artifact: Artifact, chat_template: bytes | None) -> str:
    """What changes when a byte of the source may have changed."""
    template = hashlib.sha256(chat_template or b"").hexdigest()
    stamps = [file_stamp(file) for file in artifact.file_paths]
    return json.dumps([artifact.artifact_id, stamps, template])
