"""Opening artifacts of any version: one `Artifact`, whatever the container.

artifact = open_artifact("model.ninfer")
query = artifact.parameter("text/layers/3/attention/query", (6144, 5120))
query.format, query.words(), query.decode()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from ninfer_jax.artifact.bindings import StoredTensor, resolve_binding
from ninfer_jax.artifact.directory import (
    Binding,
    Component,
    Directory,
    StoredObject,
    Use,
)
from ninfer_jax.artifact.framing import PAGE, EntryHeader, parse_entry_header
from ninfer_jax.artifact.legacy import LegacyDirectory, parse_legacy, upgrade_directory
from ninfer_jax.artifact.parse import parse_directory
from ninfer_jax.artifact.payload import MappedFile, Payload, Segment
from ninfer_jax.artifact.sources import ObjectSource, PayloadSource
from ninfer_jax.artifact.strict_json import parse_json
from ninfer_jax.errors import ArtifactError


@dataclass(frozen=True)
class Container:
    """A file set that is well formed, before anything is known about the model in it.

    `directory` is a `LegacyDirectory` for versions 1 and 2. `size_bytes` counts all files.
    """

    path: Path
    header: EntryHeader
    directory: Directory | LegacyDirectory
    payload: Payload
    size_bytes: int


def open_container(path: str | Path) -> Container:
    """Open a file and check its framing and directory, for any model.

    Raises `ArtifactError` for a malformed, truncated or foreign file. Continuation files are not
    opened yet.
    """
    path = Path(path)
    where = path.name
    entry = MappedFile(path, where)
    try:
        header = parse_entry_header(entry.head(32), entry.size, where)
        text = entry.read(header.json_offset, header.json_bytes).tobytes()
        document = parse_json(text, f"{where}: directory")
        if header.version < 3:
            directory = parse_legacy(document, header.version, entry.size - header.payload_start)
            payload_end = entry.size - header.payload_start
            segments = [Segment(path, 0, payload_end, header.payload_start)]
            size_bytes = entry.size
        else:
            directory = parse_directory(document, where)
            segments, size_bytes = _segments(path, header, directory, entry.size)
    except ArtifactError as error:
        entry.close()
        if error.message.startswith(where):
            raise
        raise ArtifactError(f"{where}: {error.message}") from None
    payload = Payload(entry, segments, header.artifact_id)
    return Container(path, header, directory, payload, size_bytes)


def _segments(
    path: Path, header: EntryHeader, directory: Directory, entry_bytes: int
) -> tuple[list[Segment], int]:
    segments = []
    begin = 0
    for entry in directory.files:
        start = PAGE if segments else header.payload_start
        file = path if entry.path is None else path.parent / entry.path
        segments.append(Segment(file, begin, begin + entry.payload_bytes, start))
        begin += entry.payload_bytes
    expected = header.payload_start + directory.files[0].payload_bytes
    if entry_bytes != expected:
        problem = "truncated" if entry_bytes < expected else "trailing data"
        raise ArtifactError(
            f"{problem}: the entry file has {entry_bytes} bytes, expected {expected}"
        )
    return segments, header.payload_start + begin + PAGE * (len(segments) - 1)


def open_artifact(path: str | Path) -> Artifact:
    """Open an artifact of version 1, 2 or 3 and present it in the version 3 form.

    Raises `ArtifactError` for everything a bad file can cause; for versions 1 and 2 that includes
    an identity whose storage contract is unknown, unexpected objects and missing ones.
    """
    container = open_container(path)
    directory = container.directory
    if isinstance(directory, LegacyDirectory):
        try:
            directory = upgrade_directory(directory, container.payload.size)
        except ArtifactError as error:
            container.payload.close()
            raise ArtifactError(f"{container.path.name}: {error.message}") from None
    header = container.header
    return Artifact(
        directory,
        PayloadSource(container.payload),
        path=container.path,
        version=header.version,
        artifact_id=None if header.artifact_id is None else header.artifact_id.hex(),
        size_bytes=container.size_bytes,
    )


class Artifact:
    """A readable artifact: its directory, and lazily the words of its objects.

    Attributes:
      path: entry file, or folder of a converted checkpoint.
      version: container version.
      artifact_id: 32 hex digits, or None before version 3.
      size_bytes: bytes of all files together.
      name: public model name (`metadata.name`, or `model_id` before version 3), or None.
      directory: everything it says about itself, in the version 3 form.
      components, objects, bindings: by name. uses: in stored order.
      metadata, provenance: open JSON objects, or None.
    """

    def __init__(
        self,
        directory: Directory,
        source: ObjectSource,
        *,
        path: Path,
        version: int,
        artifact_id: str | None,
        size_bytes: int,
    ):
        self.path = path
        self.version = version
        self.artifact_id = artifact_id
        self.size_bytes = size_bytes
        self.directory = directory
        self.components: dict[str, Component] = directory.components
        self.objects: dict[str, StoredObject] = directory.objects
        self.bindings: dict[str, Binding] = directory.bindings
        self.uses: tuple[Use, ...] = directory.uses
        self.files = directory.files
        self.metadata = directory.metadata
        self.provenance = directory.provenance
        self.name: str | None = (directory.metadata or {}).get("name")
        self._source = source
        self._uses = {(use.parameter, use.input): use for use in directory.uses}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; arrays and words already read stay valid."""
        self._source.close()

    @property
    def file_paths(self) -> list[Path]:
        """The files of the set, entry first."""
        return [self.path.parent / (entry.path or self.path.name) for entry in self.files]

    def open_all_files(self) -> None:
        """Open and check every continuation file now instead of on first touch."""
        self._source.open_all()

    def prepare(self, parameters: Iterable[str]) -> None:
        """Tell which parameters will be read, so that they can be fetched together.

        Names that are not bound are left for `parameter` to complain about.
        """
        bindings = [self.bindings[name] for name in parameters if name in self.bindings]
        ids = [binding.object for binding in bindings if binding.object is not None]
        ids += [part.object for binding in bindings for part in binding.parts]
        self.prepare_objects(dict.fromkeys(ids))

    def parameter(self, name: str, shape: tuple[int, ...] | None = None) -> StoredTensor:
        """Resolve a logical parameter; `shape`, where given, must be the stored one.

        Raises `ArtifactError` when the parameter is missing, its shape or element count differs,
        or its storage cannot be interpreted.
        """
        binding = self.bindings.get(name)
        if binding is None:
            raise ArtifactError(f"{self.path.name}: parameter {name!r} is missing")
        return self._resolve(name, binding, shape)

    def use(self, parameter: str, input: str) -> Use | None:
        """Return the use of `parameter` with the mathematical input `input`, or None."""
        return self._uses.get((parameter, input))

    def auxiliary(
        self, use: Use, role: str, shape: tuple[int, ...] | None = None
    ) -> StoredTensor | None:
        """Resolve an auxiliary tensor of a use, or return None when it has none of that role."""
        binding = use.auxiliaries.get(role)
        if binding is None:
            return None
        return self._resolve(f"{use.parameter}@{use.input}.{role}", binding, shape)

    def resource(self, component: str, role: str) -> bytes:
        """Return the bytes of a resource file, such as `("text", "tokenizer.json")`."""
        if component not in self.components:
            raise ArtifactError(f"{self.path.name}: artifact has no {component} component")
        name = self.components[component].resources.get(role)
        if name is None:
            raise ArtifactError(
                f"{self.path.name}: component {component!r} has no resource {role!r}"
            )
        return self.object_words(name).tobytes()

    def object_words(self, id: str) -> memoryview:
        """Return the stored bytes of an object, not copied where one file holds them all."""
        stored = self.objects.get(id)
        if stored is None:
            raise ArtifactError(f"{self.path.name}: no object {id!r}")
        return self._source.words(stored)

    def object_chunks(self, id: str) -> Iterator[np.ndarray]:
        """Yield the stored bytes of an object as consecutive uint8 arrays of bounded size."""
        stored = self.objects.get(id)
        if stored is None:
            raise ArtifactError(f"{self.path.name}: no object {id!r}")
        yield from self._source.chunks(stored)

    def prepare_objects(self, ids: Iterable[str]) -> None:
        """Tell which objects will be read; what was told before is forgotten."""
        self._source.prepare(ids)

    def _resolve(self, name: str, binding: Binding, shape: tuple[int, ...] | None) -> StoredTensor:
        expected = None if shape is None else tuple(shape)
        try:
            return resolve_binding(name, binding, self.objects, self._source, expected)
        except ArtifactError as error:
            raise ArtifactError(f"{self.path.name}: {error.message}") from None
