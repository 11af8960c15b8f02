"""Writing version 3 artifacts, split over files where a limit asks for it.

Sizes follow from formats and shapes, so the directory is written before any payload byte exists;
payloads are then produced one object at a time and never held together.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    payload_end,
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
from ninfer_jax.artifact.staging import Staging, require_space
from ninfer_jax.errors import ArtifactError

DEFAULT_FILE_LIMIT = 32_000_000_000
RECORD_BYTES = 512 << 20
"""Payload bytes between two records of how far a resumable write is."""


Produce = Callable[[StoredObject], Iterable[Any]]
"""The payload of an object as consecutive buffers."""

Progress = Callable[[int], None]
"""Told how many payload bytes were written since the last call."""


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor object to write.

    `data` is its packed payload, or a function that returns it, whole or as an iterator of
    consecutive buffers.
    """

    id: str
    format: str
    shape: tuple[int, ...]
    data: Any


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
    source: str | None = None,
    progress: Progress = lambda count: None,
) -> list[Path]:
    """Write an artifact and return its files, entry first.

    Resources (object id -> bytes) come first, then tensors in the given order. See
    `write_directory` for the rest.
    """
    if isinstance(resources, Mapping):
        resources = [ResourceToWrite(id, data) for id, data in resources.items()]
    objects, sources = _place(list(resources), list(tensors))
    directory = Directory(
        components=dict(components),
        objects=objects,
        bindings=dict(bindings),
        uses=tuple(uses),
        files=(FileEntry(None, payload_end(objects)),),
        metadata=None if metadata is None else dict(metadata),
        provenance=None if provenance is None else dict(provenance),
    )
    return write_directory(
        path,
        directory,
        lambda stored: _buffers(sources[stored.id]),
        artifact_id=artifact_id,
        file_limit=file_limit,
        source=source,
        progress=progress,
    )


def write_directory(
    path: str | Path,
    directory: Directory,
    produce: Produce,
    *,
    artifact_id: bytes | None = None,
    file_limit: int = DEFAULT_FILE_LIMIT,
    source: str | None = None,
    progress: Progress = lambda count: None,
) -> list[Path]:
    """Write the artifact that a directory describes, its objects at the offsets it gives.

    Files appear under their names only when complete and on the disk: parts first, the entry
    last. `artifact_id` (16 bytes) is drawn at random when None. `directory.files` is ignored.

    With `source`, a text that names the origin of every byte, an interrupted write goes on where
    it stopped when it is asked for again; without it, or under another text, it begins anew.

    Raises `ArtifactError` when a file exists already, the disk is too small, a payload has
    another size than its format and shape ask for, or the directory does not describe a valid
    artifact.
    """
    path = Path(path)
    payload_bytes = payload_end(directory.objects)
    text, files = layout_files(directory, payload_bytes, path.name, file_limit)
    # The reader's own checks refuse a directory that could not be read back.
    parse_directory(json.loads(text), path.name)
    names = [path.name if entry.path is None else entry.path for entry in files]
    for name in names:
        if os.path.lexists(path.parent / name):
            raise ArtifactError(f"{path.parent / name}: exists already and is not overwritten")
    plan = {
        "directory": hashlib.sha256(text).hexdigest(),
        "artifact_id": artifact_id and artifact_id.hex(),
        # Without a source nothing an earlier run wrote can be trusted.
        "source": uuid.uuid4().hex if source is None else source,
    }
    starts = [payload_start(3, len(text))] + [PAGE] * (len(files) - 1)
    sizes = [entry.payload_bytes for entry in files]
    with Staging(path, plan) as staging:
        if not _is_there(staging.folder, names, starts, sizes, staging.state.get("position", 0)):
            staging.clear()
        state = staging.state
        done, position = state.get("objects", 0), state.get("position", 0)
        # The identity was drawn when the first byte was written.
        identity = artifact_id or bytes.fromhex(state.get("identity", uuid.uuid4().hex))
        require_space(path.parent, payload_bytes - position)
        heads = [entry_header(3, len(text), identity) + text]
        heads += [part_header(index, identity) for index in range(1, len(files))]
        spans = list(zip(heads, starts, sizes, strict=True))
        progress(position)
        recorded = position
        with PayloadWriter(path.parent, staging.folder, names, spans, position) as writer:
            for index, stored in enumerate(directory.objects.values()):
                if index < done:
                    continue
                before = writer.position
                writer.write(stored, produce(stored))
                progress(writer.position - before)
                if source is not None and writer.position - recorded >= RECORD_BYTES:
                    writer.sync()
                    recorded = writer.position
                    staging.record(objects=index + 1, position=recorded, identity=identity.hex())
            return writer.publish()


def _is_there(
    folder: Path, names: list[str], starts: list[int], sizes: list[int], position: int
) -> bool:
    """Whether the first `position` payload bytes are in the files of an earlier run."""
    for name, start, size in zip(names, starts, sizes, strict=True):
        if position <= 0:
            break
        file = folder / name
        if not file.is_file() or file.stat().st_size < start + min(size, position):
            return False
        position -= size
    return True


def _buffers(data: Any) -> Iterable[Any]:
    produced = data() if callable(data) else data
    return produced if isinstance(produced, Iterator) else (produced,)


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
