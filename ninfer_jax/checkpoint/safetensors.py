"""The safetensors file format: 8 bytes of length, a JSON header, and the data.

Reading maps files into memory and copies nothing. Types without a NumPy counterpart come as
their stored words: BF16 as uint16, the FP8 types as uint8.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ninfer_jax.artifact.strict_json import parse_json
from ninfer_jax.errors import ArtifactError

WORD_TYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype("u1"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}
"""Type in the file -> NumPy type of its words."""

ARRAY_TYPES: dict[np.dtype, str] = {
    np.dtype(np.bool_): "BOOL",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
    np.dtype(np.float64): "F64",
} | {
    np.dtype(f"{sign}{size}"): f"{sign.upper()}{8 * size}" for sign in "iu" for size in (1, 2, 4, 8)
}
"""NumPy type -> type in the file."""

MAXIMUM_HEADER = 100_000_000
"""Bytes of a header at most, the limit of the reference implementation."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: bytes `[begin, end)` of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class StreamedTensor:
    """A tensor to write whose data, as consecutive buffers, is asked for when its turn comes."""

    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Any]]

    @property
    def nbytes(self) -> int:
        """Bytes that all chunks together must have."""
        return math.prod(self.shape) * WORD_TYPES[self.dtype].itemsize


class SafetensorsFile:
    """A mapped file, its header checked.

    Attributes:
      path: the file.
      entries: tensor name -> where its data is.
    """

    def __init__(self, path: Path):
        """Open a file; `ArtifactError` names the file, and the tensor, for every fault."""
        self.path = path
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                if size < 8:
                    raise ArtifactError(
                        f"{path.name}: {size} bytes, a safetensors file has 8 or more"
                    )
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from None
        length = int.from_bytes(self._map[:8], "little")
        if length > min(size - 8, MAXIMUM_HEADER):
            raise ArtifactError(
                f"{path.name}: the header has {length} bytes, but {size - 8} follow and at most "
                f"{MAXIMUM_HEADER} are accepted; this is no safetensors file or a cut one"
            )
        self._start = 8 + length
        header = parse_json(self._map[8 : self._start], f"{path.name}: header")
        self.entries = _entries(header, size - self._start, path.name)

    def words(self, name: str) -> np.ndarray:
        """The words of a tensor in its shape, a view of the mapped file."""
        entry = self.entries[name]
        dtype = WORD_TYPES[entry.dtype]
        count = math.prod(entry.shape)
        if not count:
            return np.empty(entry.shape, dtype)
        flat = np.frombuffer(self._map, dtype, count, self._start + entry.begin)
        return flat.reshape(entry.shape)


def _entries(header: object, data_bytes: int, where: str) -> dict[str, TensorEntry]:
    if not isinstance(header, dict):
        raise ArtifactError(f"{where}: the header is no JSON object")
    entries = {
        name: _entry(name, record, data_bytes, where)
        for name, record in header.items()
        if name != "__metadata__"
    }
    previous = None
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if previous is not None and entry.begin < previous.end:
            raise ArtifactError(
                f"{where}: tensor {entry.name!r}: begins at {entry.begin}, before the end "
                f"{previous.end} of {previous.name!r}"
            )
        if entry.end > entry.begin:
            previous = entry
    return entries


def _entry(name: str, record: object, data_bytes: int, where: str) -> TensorEntry:
    label = f"{where}: tensor {name[:200]!r}"
    if not isinstance(record, dict) or not {"dtype", "shape", "data_offsets"} <= record.keys():
        raise ArtifactError(f"{label}: expected an object with dtype, shape and data_offsets")
    dtype, shape, offsets = record["dtype"], record["shape"], record["data_offsets"]
    if not isinstance(dtype, str) or dtype not in WORD_TYPES:
        raise ArtifactError(
            f"{label}: dtype {str(dtype)[:40]!a}, expected one of {', '.join(WORD_TYPES)}"
        )
    if not _are_counts(shape) or len(shape) > 16:
        raise ArtifactError(f"{label}: shape {str(shape)[:80]} is no list of up to 16 axes >= 0")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ArtifactError(f"{label}: data_offsets {str(offsets)[:80]}, expected [begin, end]")
    begin, end = offsets
    if not begin <= end <= data_bytes:
        raise ArtifactError(
            f"{label}: data_offsets [{begin}, {end}], but the file holds {data_bytes} bytes of data"
        )
    expected = math.prod(shape) * WORD_TYPES[dtype].itemsize
    if end - begin != expected:
        raise ArtifactError(f"{label}: {end - begin} bytes, but {dtype} {shape} takes {expected}")
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


class Safetensors:
    """The tensors of one file, or of a directory with one file or an index of shards.

    Attributes:
      path: what was opened.
      entries: tensor name -> entry.
    """

    def __init__(self, path: Path):
        """Open everything; `ArtifactError` names the shard or tensor that is missing."""
        self.path = path
        self._files: dict[str, SafetensorsFile] = {}
        if path.is_dir():
            index = path / "model.safetensors.index.json"
            if index.is_file():
                self._open_shards(index)
            else:
                self._add(SafetensorsFile(_only_file(path)))
        else:
            self._add(SafetensorsFile(path))
        self.entries = {name: file.entries[name] for name, file in self._files.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    @property
    def files(self) -> set[Path]:
        """The files that hold tensors."""
        return {file.path for file in self._files.values()}

    def words(self, name: str) -> np.ndarray:
        """The words of a tensor that exists, in its shape; a view."""
        return self._files[name].words(name)

    def entry(
        self, name: str, dtypes: Iterable[str], shapes: Iterable[tuple[int, ...]]
    ) -> TensorEntry:
        """The entry of a tensor of one of the types and shapes; `ArtifactError` otherwise."""
        if name not in self.entries:
            raise ArtifactError(f"{self.path}: tensor {name!r} is missing")
        entry, dtypes, shapes = self.entries[name], tuple(dtypes), tuple(shapes)
        label = f"{self._files[name].path}: tensor {name!r}"
        if entry.dtype not in dtypes:
            raise ArtifactError(f"{label} is {entry.dtype}, expected {' or '.join(dtypes)}")
        if entry.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise ArtifactError(f"{label} has shape {list(entry.shape)}, expected {expected}")
        return entry

    def _add(self, file: SafetensorsFile) -> None:
        self._files.update(dict.fromkeys(file.entries, file))

    def _open_shards(self, index: Path) -> None:
        document = parse_json(index.read_bytes(), index.name)
        weights = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(weights, dict):
            raise ArtifactError(f"{index}: missing member 'weight_map', an object")
        shards: dict[str, SafetensorsFile] = {}
        for name, shard in weights.items():
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise ArtifactError(
                    f"{index}: tensor {name!r}: {str(shard)[:80]!a} is no file name"
                )
            if shard not in shards:
                if not (index.parent / shard).is_file():
                    raise ArtifactError(f"{index.parent}: shard {shard!r} is missing")
                shards[shard] = SafetensorsFile(index.parent / shard)
            if name not in shards[shard].entries:
                raise ArtifactError(f"{index.parent / shard}: tensor {name!r} is missing")
            self._files[name] = shards[shard]


def _only_file(folder: Path) -> Path:
    if (folder / "model.safetensors").is_file():
        return folder / "model.safetensors"
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise ArtifactError(
            f"{folder}: {len(found)} safetensors files, expected model.safetensors, "
            "model.safetensors.index.json with its shards, or a single file"
        )
    return found[0]


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray | StreamedTensor]) -> None:
    """Write tensors in the order given; streamed ones are produced one after another.

    Raises ValueError for a type that the format has no name for, and when a streamed tensor
    produces another number of bytes than its shape takes.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in tensors.items():
        header[name] = {
            "dtype": _file_type(name, value),
            "shape": list(value.shape),
            "data_offsets": [offset, offset + value.nbytes],
        }
        offset += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, value in tensors.items():
            written = 0
            for chunk in _chunks(value):
                written += file.write(np.frombuffer(chunk, np.uint8))
            if written != value.nbytes:
                raise ValueError(f"{name}: {written} bytes produced, expected {value.nbytes}")


def _file_type(name: str, value: np.ndarray | StreamedTensor) -> str:
    if isinstance(value, StreamedTensor):
        return value.dtype
    if value.dtype not in ARRAY_TYPES:
        raise ValueError(
            f"{name} is {value.dtype}, expected one of {', '.join(map(str, ARRAY_TYPES))}"
        )
    return ARRAY_TYPES[value.dtype]


def _chunks(value: np.ndarray | StreamedTensor) -> Iterable[Any]:
    if isinstance(value, StreamedTensor):
        return value.chunks()
    return (value.tobytes(),) if value.size else ()
