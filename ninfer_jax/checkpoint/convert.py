"""Between `.ninfer` artifacts and Orbax checkpoints, both ways, and the proof that they agree.

Objects are streamed in payload order, a group at a time; nothing holds more than one.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import ninfer_jax
from ninfer_jax.artifact.directory import (
    StoredObject,
    TensorObject,
    check_storage,
    directory_document,
)
from ninfer_jax.artifact.reader import Artifact, open_artifact
from ninfer_jax.artifact.staging import Staging, file_stamp, require_space, sync_path
from ninfer_jax.artifact.writer import DEFAULT_FILE_LIMIT, Progress, write_directory
from ninfer_jax.checkpoint import orbax
from ninfer_jax.checkpoint.checkpoint_source import (
    METADATA,
    SOURCES,
    array_path,
    open_checkpoint,
    source_digests,
)
from ninfer_jax.checkpoint.file_hashes import FileHashes
from ninfer_jax.checkpoint.open import open_weights
from ninfer_jax.checkpoint.planes import LAYOUT_VERSION, planes
from ninfer_jax.errors import ArtifactError

SAVE_BYTES = 2 << 30
"""Stored bytes that are saved together at most. Nearly all of them are written from where they are
mapped, so this bounds what an interrupted conversion does again, not its memory."""

GROUP_BYTES = 384 << 20
"""Stored bytes that are read together on the way back, unless one object is larger."""


def artifact_to_checkpoint(
    source: Path, destination: Path, *, progress: Progress = lambda count: None
) -> dict[str, str]:
    """Converts an artifact of any container version into the folder `destination`.

    Returns:
      SHA-256 of each source file by name; the checkpoint's metadata holds them too.

    Raises:
      ArtifactError: the source is malformed, or the destination exists or does not fit its disk.
    """
    with open_artifact(source) as artifact:
        artifact.open_all_files()
        files = artifact.file_paths
        plan = {
            "to": "orbax",
            "layout": LAYOUT_VERSION,
            "group": SAVE_BYTES,
            "from": [artifact.artifact_id, *map(file_stamp, files)],
        }
        groups = _groups(artifact.objects.values(), SAVE_BYTES)
        with Staging(destination, plan) as staging:
            unfinished = staging.folder / "checkpoint"
            if staging.state.get("finishing") and not orbax.is_finished(unfinished):
                staging.clear()
            if not orbax.is_finished(unfinished):
                staging.record(finishing=False)
                _save_groups(artifact, groups, unfinished, FileHashes(files), progress)
                staging.record(finishing=True)
                orbax.finish(unfinished)
            digests = source_digests(unfinished)
            staging.publish(unfinished)
    return digests


def _save_groups(
    artifact: Artifact,
    groups: list[list[StoredObject]],
    unfinished: Path,
    hashing: FileHashes,
    progress: Progress,
) -> None:
    """Saves the groups that are not saved yet, and hashes the source beside it."""
    done = orbax.saved_groups(unfinished)
    rest = sum(map(_bytes, groups[done:]))
    require_space(unfinished.parent, rest)
    ends = list(itertools.accumulate(map(_bytes, groups)))
    synced: set[Path] = set()
    # The hash reads one group ahead, which brings it into memory; finished groups go to the disk
    # while the next one is converted. So reading and writing overlap, and nothing is read twice.
    one_thread = concurrent.futures.ThreadPoolExecutor
    with one_thread(1) as reader, one_thread(1) as syncer:
        reader.submit(hashing.advance, ends[0])
        reading = syncing = None
        for index, group in enumerate(groups):
            if reading is not None:
                reading.result()
            metadata = {METADATA: _facts(artifact)} if index == 0 else {}
            if index + 1 < len(groups):
                reading = reader.submit(hashing.advance, ends[index + 1])
            else:
                metadata[SOURCES] = reader.submit(hashing.finish).result()
            if index >= done:
                orbax.save_group(unfinished, _arrays(artifact, group), metadata)
                if syncing is not None:
                    syncing.result()
                syncing = syncer.submit(_sync_new, unfinished.parent, synced)
            progress(_bytes(group))
        if syncing is not None:
            syncing.result()


def _sync_new(folder: Path, synced: set[Path]) -> None:
    """Forces the files below `folder` to the disk that are not in `synced` yet."""
    for path in folder.rglob("*"):
        if path not in synced and path.is_file():
            sync_path(path)
            synced.add(path)


def checkpoint_to_artifact(
    source: Path,
    destination: Path,
    *,
    file_limit: int = DEFAULT_FILE_LIMIT,
    progress: Progress = lambda count: None,
) -> list[Path]:
    """Writes the artifact that a checkpoint was converted from, as container version 3.

    Returns the files, entry first. Every object has the bytes it had. Raises `ArtifactError`.
    """
    with open_checkpoint(source) as checkpoint:
        groups = _Prepared(checkpoint)
        stamp = (source / "_CHECKPOINT_METADATA").read_bytes()
        return write_directory(
            destination,
            checkpoint.directory,
            groups.chunks,
            file_limit=file_limit,
            source=hashlib.sha256(stamp).hexdigest(),
            progress=progress,
        )


def verify_conversion(
    source: Path, converted: Path, *, progress: Progress = lambda count: None
) -> int:
    """Proves that two artifacts or checkpoints hold the same objects, byte for byte.

    Of a checkpoint the way back runs in memory, a group at a time. Returns the number of objects.

    Raises:
      ArtifactError: an object differs, or exists on one side only; its name and first byte.
    """
    with open_weights(source) as first, open_weights(converted) as second:
        if first.objects.keys() != second.objects.keys():
            odd = min(first.objects.keys() ^ second.objects.keys())
            raise ArtifactError(f"object {odd!r} is not on both sides")
        sides = _Prepared(first), _Prepared(second)
        for id, stored in first.objects.items():
            if stored.bytes != second.objects[id].bytes:
                raise ArtifactError(
                    f"object {id!r} has {stored.bytes} and {second.objects[id].bytes} bytes"
                )
            at = _first_difference(*(side.chunks(stored) for side in sides))
            if at is not None:
                raise ArtifactError(f"object {id!r} differs at byte {at} of {stored.bytes}")
            progress(stored.bytes)
        return len(first.objects)


def _first_difference(first: Iterable[np.ndarray], second: Iterable[np.ndarray]) -> int | None:
    """The first byte in which two streams of chunks differ, or None."""
    streams = iter(first), iter(second)
    left, right = np.empty(0, np.uint8), np.empty(0, np.uint8)
    position = 0
    while True:
        left = left if left.size else next(streams[0], left)
        right = right if right.size else next(streams[1], right)
        count = min(left.size, right.size)
        if not count:
            return position if left.size or right.size else None
        if not np.array_equal(left[:count], right[:count]):
            return position + int(np.argmax(left[:count] != right[:count]))
        left, right, position = left[count:], right[count:], position + count


class _Prepared:
    """Reads objects in payload order, those of a checkpoint a group in one read."""

    def __init__(self, artifact: Artifact):
        self._artifact = artifact
        groups = _groups(artifact.objects.values(), GROUP_BYTES)
        self._group_of = {stored.id: group for group in groups for stored in group}
        self._current: list[StoredObject] | None = None

    def chunks(self, stored: StoredObject) -> Iterable[np.ndarray]:
        """The payload of an object as consecutive uint8 arrays."""
        group = self._group_of[stored.id]
        if group is not self._current:
            # Before the next group is read the last one is forgotten.
            self._artifact.prepare_objects(())
            self._artifact.prepare_objects(stored.id for stored in group)
            self._current = group
        return self._artifact.object_chunks(stored.id)


def _groups(objects: Iterable[StoredObject], limit: int) -> list[list[StoredObject]]:
    """Consecutive objects, up to `limit` stored bytes together unless one is larger."""
    groups: list[list[StoredObject]] = []
    size = 0
    for stored in objects:
        if not groups or size + stored.bytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(stored)
        size += stored.bytes
    return groups


def _bytes(group: list[StoredObject]) -> int:
    return sum(stored.bytes for stored in group)


def _arrays(artifact: Artifact, group: list[StoredObject]) -> dict[str, np.ndarray]:
    arrays = {}
    for stored in group:
        words = np.frombuffer(artifact.object_words(stored.id), np.uint8)
        if isinstance(stored, TensorObject):
            check_storage(stored)
            for name, plane in planes(stored.format, stored.shape, words).items():
                arrays[array_path(stored, name)] = plane
        else:
            arrays[array_path(stored)] = words
    return arrays


def _facts(artifact: Artifact) -> dict[str, object]:
    return {
        "layout_version": LAYOUT_VERSION,
        "converter": f"ninfer_jax {ninfer_jax.__version__}",
        "source_name": artifact.path.name,
        "container_version": artifact.version,
        "artifact_id": artifact.artifact_id,
        "directory": directory_document(artifact.directory),
    }
