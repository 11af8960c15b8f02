"""Where the words of stored objects come from: the payload of a container, or something else.

`Artifact` reads through this protocol, so a checkpoint converted from an artifact can stand in for
it (`ninfer_jax/checkpoint/orbax.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from ninfer_jax.artifact.codecs import Fields, unpack_elements
from ninfer_jax.artifact.directory import StoredObject, TensorObject
from ninfer_jax.artifact.payload import Payload

CHUNK_BYTES = 64 << 20


class ObjectSource(Protocol):
    """Reads stored objects. Every method raises `ArtifactError` for what cannot be read."""

    def fields(self, stored: TensorObject, begin: int, end: int) -> Fields:
        """The fields of the C-order elements `[begin, end)`, as `codecs.unpack_elements`."""
        ...

    def words(self, stored: StoredObject) -> memoryview:
        """The stored bytes of a whole object, as in a container."""
        ...

    def chunks(self, stored: StoredObject) -> Iterator[np.ndarray]:
        """The same bytes as consecutive uint8 arrays, so that nobody holds a large object."""
        ...

    def prepare(self, ids: Iterable[str]) -> None:
        """Told which objects will be read, so that they can be fetched together."""
        ...

    def open_all(self) -> None:
        """Opens and checks everything now instead of on first touch."""
        ...

    def close(self) -> None:
        """Closes files; what was handed out stays valid."""
        ...


class PayloadSource:
    """`ObjectSource` over the memory-mapped payload of a container."""

    def __init__(self, payload: Payload):
        self._payload = payload

    def fields(self, stored: TensorObject, begin: int, end: int) -> Fields:
        """See `ObjectSource.fields`; reads only the pages of these elements."""
        payload = self._payload.read(stored.offset, stored.bytes)
        return unpack_elements(stored.format, stored.shape, payload, begin, end)

    def words(self, stored: StoredObject) -> memoryview:
        """See `ObjectSource.words`; not copied where one file holds them all."""
        return memoryview(self._payload.read(stored.offset, stored.bytes))

    def chunks(self, stored: StoredObject) -> Iterator[np.ndarray]:
        """See `ObjectSource.chunks`."""
        for begin in range(0, stored.bytes, CHUNK_BYTES):
            count = min(CHUNK_BYTES, stored.bytes - begin)
            yield self._payload.read(stored.offset + begin, count)

    def prepare(self, ids: Iterable[str]) -> None:
        """See `ObjectSource.prepare`: pages are read when they are touched."""

    def open_all(self) -> None:
        """See `ObjectSource.open_all`."""
        self._payload.open_all()

    def close(self) -> None:
        """See `ObjectSource.close`."""
        self._payload.close()
