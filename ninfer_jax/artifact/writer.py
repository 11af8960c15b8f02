"""Writing version 3 artifacts, split over files where a limit asks for it.

Sizes follow from formats and shapes, so the directory is written before any payload byte exists;
payloads are then produced one object at a time and never held together.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_jax.artifact.codecs import encoded_bytes
from ninfer_jax.artifact.directory import (
    Binding,
    Component,
    Directory,
    FileEntry,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
    directory_document,
)
from ninfer_jax.artifact.formats import FORMATS
from ninfer_jax.artifact.framing import (
    HEADER_BYTES,
    PAGE,
    entry_header,
    part_header,
    payload_start,
)
from ninfer_jax.artifact.parse import parse_directory
from ninfer_jax.artifact.payload_writer import PayloadWriter
from ninfer_jax.errors import ArtifactError

DEFAULT_FILE_LIMIT = 32_000_000_000


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor object to write: `data` is its packed payload, or a function that returns it."""

    id: str
    format: str
    shape: tuple[int, ...]
    data: bytes | Callable[[], Any]


@dataclass(frozen=True)
class ResourceToWrite:
    """A resource object to write."""

    id: str
    data: bytes


def write_artifact(
    path: str | Path,
    *,
    components: Mapping[str, Component],
    tensors: Iterable[TensorToWrite],
    resources: Mapping[str, bytes] | Iterable[ResourceToWrite],
    bindings: Mapping[str, Binding],
    uses: Iterable[Use] = (),
    metadata: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    artifact_id: bytes | None = None,
    file_limit: int = DEFAULT_FILE_LIMIT,
) -> list[Path]:
    """Write an artifact and return its files, entry first.

    Resources (object id -> bytes) come first, then tensors in the given order. Files appear under
    their names only when complete: parts first, the entry last. `artifact_id` (16 bytes) is drawn
    at random when None. Raises `ArtifactError` when a file exists already, a payload has another
    size than its format and shape ask for, or the directory does not describe a valid artifact.
    """
    path = Path(path)
    pending = list(tensors)
    if isinstance(resources, Mapping):
        resources = [ResourceToWrite(id, data) for id, data in resources.items()]
    objects, sources = _place(list(resources), pending)
    payload_bytes = max((stored.offset + stored.bytes for stored in objects.values()), default=0)
    identity = uuid.uuid4().bytes if artifact_id is None else artifact_id
    draft = Directory(
        components=dict(components),
        objects=objects,
        bindings=dict(bindings),
        uses=tuple(uses),
        files=(FileEntry(None, payload_bytes),),
        metadata=None if metadata is None else dict(metadata),
        provenance=None if provenance is None else dict(provenance),
    )
    text, files = layout_files(draft, payload_bytes, path.name, file_limit)
    # The reader's own checks refuse a directory that could not be read back.
    parse_directory(json.loads(text), path.name)
    names = [path.name if entry.path is None else entry.path for entry in files]
    for name in names:
        if os.path.lexists(path.parent / name):
            raise ArtifactError(f"{path.parent / name}: exists already and is not overwritten")
    heads = [entry_header(3, len(text), identity) + text]
    heads += [part_header(index, identity) for index in range(1, len(files))]
    spans = [
        (head, payload_start(3, len(text)) if index == 0 else PAGE, entry.payload_bytes)
        for index, (head, entry) in enumerate(zip(heads, files, strict=True))
    ]
    with PayloadWriter(path.parent, names, spans) as writer:
        for stored in objects.values():
            writer.write(stored, _produce(sources[stored.id]))
        return writer.publish()


def _produce(data: Any) -> Any:
    return data() if callable(data) else data


def _place(
    resources: Sequence[ResourceToWrite], tensors: Sequence[TensorToWrite]
) -> tuple[dict[str, StoredObject], dict[str, Any]]:
    """Give every object the first offset its alignment permits."""
    objects: dict[str, StoredObject] = {}
    sources: dict[str, Any] = {}
    cursor = 0
    for source in (*resources, *tensors):
        if source.id in objects:
            raise ArtifactError(f"object {source.id!r}: written twice")
        if isinstance(source, ResourceToWrite):
            stored: StoredObject = ResourceObject(source.id, cursor, len(source.data))
        else:
            shape = tuple(int(axis) for axis in source.shape)
            try:
                size = encoded_bytes(source.format, shape)
            except ArtifactError as error:
                raise ArtifactError(f"object {source.id!r}: {error.message}") from None
            offset = -(-cursor // 256) * 256
            layout = FORMATS[source.format].layout
            stored = TensorObject(source.id, shape, source.format, layout, offset, size)
        objects[source.id] = stored
        sources[source.id] = source.data
        cursor = stored.offset + stored.bytes
    return objects, sources


def layout_files(
    directory: Directory, payload_bytes: int, entry_name: str, file_limit: int
) -> tuple[bytes, tuple[FileEntry, ...]]:
    """Return the directory text and the file table, which depend on each other.

    The number of header pages only grows while they are fitted, so the search ends; a text that
    comes out shorter than its pages is padded with spaces.
    """
    pages = 1
    while True:
        files = split_payload(payload_bytes, pages * PAGE, entry_name, file_limit)
        text = directory_text(
            Directory(
                directory.components,
                directory.objects,
                directory.bindings,
                directory.uses,
                files,
                directory.metadata,
                directory.provenance,
            )
        )
        needed = payload_start(3, len(text)) // PAGE
        if needed == pages:
            return text, files
        if needed < pages:
            return text.ljust(pages * PAGE - HEADER_BYTES[3]), files
        pages = needed


def directory_text(directory: Directory) -> bytes:
    """Return the compact JSON of a directory."""
    document = directory_document(directory)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def split_payload(
    payload_bytes: int, entry_start: int, entry_name: str, file_limit: int
) -> tuple[FileEntry, ...]:
    """Cut the payload into files of at most `file_limit` bytes, headers included.

    Parts begin at multiples of 4096 of the payload. Limit 8192, start 4096, payload 4352: 4096
    bytes in the entry, 256 in `<entry>.part-0001`. Raises `ArtifactError` when the limit leaves
    no room for payload.
    """
    if entry_start + payload_bytes <= file_limit:
        return (FileEntry(None, payload_bytes),)
    entry_capacity = (file_limit - entry_start) // PAGE * PAGE
    part_capacity = (file_limit - PAGE) // PAGE * PAGE
    if entry_capacity <= 0 or part_capacity <= 0:
        raise ArtifactError(
            f"{entry_name}: a limit of {file_limit} bytes a file leaves no room for payload after "
            f"{entry_start} bytes of header and directory"
        )
    files = [FileEntry(None, entry_capacity)]
    rest = payload_bytes - entry_capacity
    while rest > 0:
        size = min(rest, part_capacity)
        files.append(FileEntry(f"{entry_name}.part-{len(files):04d}", size))
        rest -= size
    return tuple(files)
