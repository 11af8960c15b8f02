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

from ninfer_jax.artifact.codecs import Fields, fuse_rows, unpack_elements
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
    blocks,
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


def array_path(stored: StoredObject, block: int = 0, plane: str = "bytes") -> str:
    """Where an array of an object is in the checkpoint; resources have one, of their bytes."""
    return f"{stored.id}:{block}:{plane}"


def array_spec(stored: StoredObject) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Path, shape and type of every array of an object."""
    if isinstance(stored, ResourceObject):
        return {array_path(stored): ((stored.bytes,), np.dtype(np.uint8))}
    return {
        array_path(stored, index, plane): spec
        for index, (begin, end) in enumerate(blocks(stored))
        for plane, spec in plane_spec(stored, end - begin).items()
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
            self._kept = orbax.load(self._path, self._leaves, wanted, self._sharding)

    def fields(self, stored: TensorObject, begin: int, end: int) -> Fields:
        """See `ObjectSource.fields`."""
        parts = self._parts(stored)
        if stored.format in DIRECT_FORMATS:
            words = np.concatenate([np.asarray(part["words"]).reshape(-1) for part in parts])
            words = _bits(words) if stored.format == "bf16" else words
            return {"words": words[begin:end]}
        columns = stored.shape[1]
        first, last = begin // columns, end // columns
        chosen = []
        for (low, high), part in zip(blocks(stored), parts, strict=True):
            if low < last and first < high:
                chosen.append(
                    _natural(stored, part, max(first, low) - low, min(last, high) - low, high - low)
                )
        return _joined(stored.format, chosen)

    def words(self, stored: StoredObject) -> memoryview:
        """See `ObjectSource.words`."""
        return memoryview(np.concatenate([np.empty(0, np.uint8), *self.chunks(stored)]))

    def chunks(self, stored: StoredObject) -> Iterator[np.ndarray]:
        """See `ObjectSource.chunks`; an object that is not kept is read a block at a time."""
        if isinstance(stored, ResourceObject):
            name = array_path(stored)
            yield self._arrays([name])[name]
            return
        yield from payload_chunks(stored, self._blocks(stored))

    def open_all(self) -> None:
        """See `ObjectSource.open_all`: everything was checked when the checkpoint was opened."""

    def close(self) -> None:
        """See `ObjectSource.close`."""
        self._kept = {}

    def _parts(self, stored: TensorObject) -> list[Planes]:
        arrays = self._arrays(array_spec(stored))
        return [_block(stored, index, arrays) for index in range(len(blocks(stored)))]

    def _blocks(self, stored: TensorObject) -> Iterator[Planes]:
        """The same, one block in memory at a time."""
        spec = array_spec(stored)
        for index in range(len(blocks(stored))):
            prefix = array_path(stored, index, "")
            yield _block(
                stored, index, self._arrays([name for name in spec if name.startswith(prefix)])
            )

    def _arrays(self, names: Iterable[str]) -> Mapping[str, Any]:
        names = list(names)
        for arrays in (self._kept, self._small):
            if all(name in arrays for name in names):
                return arrays
        return orbax.load(self._path, self._leaves, names, None)


def _is_small(stored: StoredObject) -> bool:
    return isinstance(stored, ResourceObject) or stored.bytes <= SMALL_BYTES


def _block(stored: TensorObject, index: int, arrays: Mapping[str, Any]) -> Planes:
    return {name: arrays[array_path(stored, index, name)] for name in plane_spec(stored, 1)}


def _natural(stored: TensorObject, part: Planes, begin: int, end: int, rows: int) -> Fields:
    """The fields of rows `[begin, end)` of a block of `rows` rows."""
    if stored.format in (FP8, NVFP4):
        whole = (begin, end) == (0, rows)
        return {
            name: plane if name == "divisor" else _bits(plane if whole else plane[begin:end])
            for name, plane in part.items()
        }
    few = TensorObject("", (end - begin, stored.shape[1]), stored.format, stored.layout, 0, 0)
    planes = {name: np.asarray(plane)[begin:end] for name, plane in part.items()}
    payload = np.concatenate(list(payload_chunks(few, [planes])))
    return unpack_elements(few.format, few.shape, payload, 0, few.elements)


def _bits(array: Any) -> Any:
    """The bit patterns as unsigned integers."""
    if isinstance(array, np.ndarray):
        return array.view(f"u{array.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(array, jnp.dtype(f"u{array.dtype.itemsize}"))


def _joined(format: str, parts: list[Fields]) -> Fields:
    if len(parts) == 1 or all(isinstance(x, np.ndarray) for part in parts for x in part.values()):
        return fuse_rows(format, parts)
    return {
        name: first if name == "divisor" else jnp.concatenate([part[name] for part in parts])
        for name, first in parts[0].items()
    }
