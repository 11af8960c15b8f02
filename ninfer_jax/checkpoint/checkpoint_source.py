"""A converted checkpoint behind the interface of an artifact.

    artifact = open_checkpoint(folder, sharding)
    artifact.prepare(names)                         # one read for all of them
    artifact.parameter("text/layers/3/attention/query", (6144, 5120)).words()

With a sharding, the words of matrices are jax arrays that were read straight to its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ninfer_jax.artifact.codecs import Fields, unpack_object
from ninfer_jax.artifact.directory import (
    Directory,
    ResourceObject,
    StoredObject,
    TensorObject,
    check_storage,
)
from ninfer_jax.artifact.formats import DIRECT_FORMATS, FP8, NVFP4
from ninfer_jax.artifact.parse import parse_directory
from ninfer_jax.artifact.reader import Artifact
from ninfer_jax.checkpoint import orbax
from ninfer_jax.checkpoint.planes import (
    LAYOUT_VERSION,
    Planes,
    payload_chunks,
    plane_spec,
)
from ninfer_jax.errors import ArtifactError

METADATA = "ninfer"
"""Key of our part of the checkpoint's metadata."""

SOURCES = "ninfer_sources"
"""Key of the digests of the converted files, which are known last."""

SMALL_BYTES = 64 << 10
"""Norms, biases and divisors: a read of each of them alone would cost more than all together."""

CONVERT = "python tools/convert_artifact.py"


def array_path(stored: StoredObject, plane: str = "bytes") -> str:
    """Where an array of an object is in the checkpoint; resources have one, of their bytes."""
    return f"{stored.id}:{plane}"


def array_spec(stored: StoredObject) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Path, shape and type of every array of an object."""
    if isinstance(stored, ResourceObject):
        return {array_path(stored): ((stored.bytes,), np.dtype(np.uint8))}
    return {
        array_path(stored, plane): spec
        for plane, spec in plane_spec(stored.format, stored.shape).items()
    }


def open_checkpoint(path: Path, sharding: jax.sharding.Sharding | None = None) -> Artifact:
    """Opens a checkpoint that was converted from an artifact.

    Raises:
      ArtifactError: not such a checkpoint, converted for another layout, or incomplete.
    """
    if not orbax.is_checkpoint(path):
        raise ArtifactError(f"{path.name}: a folder, but not an Orbax checkpoint")
    orbax.check_files(path)
    leaves, metadata = orbax.read_metadata(path)
    facts = metadata.get(METADATA)
    if not isinstance(facts, dict):
        raise ArtifactError(
            f"{path.name}: an Orbax checkpoint, but not one made by {CONVERT} FILE.ninfer FOLDER"
        )
    version = facts.get("layout_version")
    if version != LAYOUT_VERSION:
        raise ArtifactError(
            f"{path.name}: layout version {version}, this version reads {LAYOUT_VERSION}; "
            f"convert the artifact again: {CONVERT} {facts.get('source_name', 'FILE.ninfer')} "
            f"{path.name}"
        )
    container, artifact_id = facts.get("container_version"), facts.get("artifact_id")
    if container not in (1, 2, 3) or not isinstance(artifact_id, str | None):
        raise ArtifactError(f"{path.name}: the metadata names container version {container!a}")
    try:
        directory = parse_directory(facts.get("directory"), path.name)
        for stored in directory.objects.values():
            if isinstance(stored, TensorObject):
                check_storage(stored)
    except ArtifactError as error:
        raise ArtifactError(f"{path.name}: {error.message}") from None
    for stored in directory.objects.values():
        for name, (shape, dtype) in array_spec(stored).items():
            found = leaves.get(name)
            if found is None or (found.shape, found.dtype) != (shape, dtype):
                what = "is missing" if found is None else f"is {found.dtype}{list(found.shape)}"
                raise ArtifactError(
                    f"{path.name}: object {stored.id!r}: array {name!r} {what}, "
                    f"expected {dtype}{list(shape)}"
                )
    return Artifact(
        directory,
        CheckpointSource(path, leaves, directory, sharding),
        path=path,
        version=container,
        artifact_id=artifact_id,
        size_bytes=orbax.total_bytes(path),
    )


def source_digests(path: Path) -> dict[str, str]:
    """SHA-256 of every file of the artifact that a checkpoint was converted from."""
    _, metadata = orbax.read_metadata(path)
    return {str(name): str(digest) for name, digest in metadata.get(SOURCES, {}).items()}


class CheckpointSource:
    """`ninfer_jax.artifact.sources.ObjectSource` over the arrays of a checkpoint.

    Resources and small tensors are read when it is opened. Objects that `prepare` named are read
    together and kept until the next `prepare` or `close`; others are read when they are asked for
    and not kept.
    """

    def __init__(
        self,
        path: Path,
        leaves: Mapping[str, jax.ShapeDtypeStruct],
        directory: Directory,
        sharding: jax.sharding.Sharding | None,
    ):
        self._path = path
        self._leaves = leaves
        self._objects = directory.objects
        self._sharding = sharding
        self._kept: dict[str, Any] = {}
        small = [name for s in self._objects.values() if _is_small(s) for name in array_spec(s)]
        self._small = orbax.load(path, leaves, small, None)

    def prepare(self, ids: Iterable[str]) -> None:
        """See `ObjectSource.prepare`."""
        self._kept = {}
        large = [stored for stored in map(self._objects.get, ids) if not _is_small(stored)]
        wanted = [name for stored in large for name in array_spec(stored)]
        if wanted:
            # A CPU device would get a copy of what Orbax reads; most of it is copied anyway, into
            # matrices of fused rows or of another type.
            host = self._sharding is None or _is_host(self._sharding)
            self._kept = orbax.load(
                self._path, self._leaves, wanted, None if host else self._sharding
            )

    def fields(self, stored: TensorObject, begin: int, end: int) -> Fields:
        """See `ObjectSource.fields`."""
        part = self._planes(stored)
        if stored.format in DIRECT_FORMATS:
            words = np.asarray(part["words"]).reshape(-1)[begin:end]
            return {"words": _bits(words) if stored.format == "bf16" else words}
        columns = stored.shape[1]
        rows = slice(begin // columns, end // columns)
        whole = (begin, end) == (0, stored.elements)
        if stored.format in (FP8, NVFP4):
            return {
                name: plane if name == "divisor" else _bits(plane if whole else plane[rows])
                for name, plane in part.items()
            }
        shape = (rows.stop - rows.start, columns)
        chosen = {name: np.asarray(plane)[rows] for name, plane in part.items()}
        payload = np.concatenate(list(payload_chunks(stored.format, shape, [chosen])))
        return unpack_object(stored.format, shape, payload)

    def words(self, stored: StoredObject) -> memoryview:
        """See `ObjectSource.words`."""
        return memoryview(np.concatenate([np.empty(0, np.uint8), *self.chunks(stored)]))

    def chunks(self, stored: StoredObject) -> Iterator[np.ndarray]:
        """See `ObjectSource.chunks`; an object that is not kept is read whole for it."""
        if isinstance(stored, ResourceObject):
            name = array_path(stored)
            yield self._arrays([name])[name]
            return
        yield from payload_chunks(stored.format, stored.shape, [self._planes(stored)])

    def open_all(self) -> None:
        """See `ObjectSource.open_all`: everything was checked when the checkpoint was opened."""

    def close(self) -> None:
        """See `ObjectSource.close`."""
        self._kept = {}

    def _planes(self, stored: TensorObject) -> Planes:
        arrays = self._arrays(array_spec(stored))
        return {
            name: arrays[array_path(stored, name)]
            for name in plane_spec(stored.format, stored.shape)
        }

    def _arrays(self, names: Iterable[str]) -> Mapping[str, Any]:
        names = list(names)
        for arrays in (self._kept, self._small):
            if all(name in arrays for name in names):
                return arrays
        return orbax.load(self._path, self._leaves, names, None)


def _is_host(sharding: jax.sharding.Sharding) -> bool:
    return all(device.platform == "cpu" for device in sharding.device_set)


def _is_small(stored: StoredObject) -> bool:
    return isinstance(stored, ResourceObject) or stored.bytes <= SMALL_BYTES


def _bits(array: Any) -> Any:
    """The bit patterns as unsigned integers."""
    if isinstance(array, np.ndarray):
        return array.view(f"u{array.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(array, jnp.dtype(f"u{array.dtype.itemsize}"))
