"""Offline verification: every file of the set, every object, every stored word."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_jax.artifact.codecs import check_fields, unpack_elements
from ninfer_jax.artifact.directory import TensorObject, check_storage
from ninfer_jax.artifact.formats import DIRECT_FORMATS
from ninfer_jax.artifact.reader import Artifact
from ninfer_jax.errors import ArtifactError

ELEMENTS_AT_ONCE = 1 << 24


def verify_artifact(artifact: Artifact) -> Iterator[str]:
    """Yield one message per fault: a bad part file, or an object with illegal words.

    Reads everything once, a block of rows at a time. Faults end the object, not the run.
    """
    try:
        artifact.open_all_files()
    except ArtifactError as error:
        yield error.message
        return
    for stored in artifact.objects.values():
        if isinstance(stored, TensorObject):
            try:
                _verify_tensor(artifact, stored)
            except ArtifactError as error:
                yield error.message


def _verify_tensor(artifact: Artifact, stored: TensorObject) -> None:
    check_storage(stored)
    if stored.format in DIRECT_FORMATS:
        return
    rows, columns = stored.shape
    payload = artifact.object_words(stored.id)
    # A multiple of the 128-row scale tiles, so that every tile is read once.
    step = max(1, ELEMENTS_AT_ONCE // columns // 128) * 128
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        label = f"object {stored.id!r} (rows from {begin})" if begin else f"object {stored.id!r}"
        fields = unpack_elements(
            stored.format, stored.shape, payload, begin * columns, end * columns
        )
        check_fields(stored.format, fields, label)
