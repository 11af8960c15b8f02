"""Payload bytes of parents, produced in blocks of rows so that no large matrix is held whole.

`object_chunks` is the one place that turns source tensors into stored bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ninfer_jax.artifact.block_scale import TILE_ROWS
from ninfer_jax.artifact.blocks import require_finite
from ninfer_jax.artifact.codecs import Fields, check_fields, fuse_rows, pack_object
from ninfer_jax.artifact.direct import bfloat16_values, bfloat16_words
from ninfer_jax.artifact.formats import DIRECT_FORMATS, FP8, NVFP4
from ninfer_jax.artifact.fp8 import encode_fp8_rows
from ninfer_jax.artifact.grouped import encode_grouped
from ninfer_jax.artifact.magnitudes import row_magnitudes
from ninfer_jax.artifact.nvfp4 import encode_nvfp4, nvfp4_divisor
from ninfer_jax.checkpoint.from_huggingface.recipe import Planned
from ninfer_jax.checkpoint.packed_integers import unpack_integers
from ninfer_jax.checkpoint.planes import Planes, payload_chunks, planes
from ninfer_jax.errors import ArtifactError

ELEMENTS_PER_BLOCK = 1 << 24
"""Elements of a block: 64 MiB as binary32."""


@dataclass(frozen=True)
class Parent:
    """A tensor object: the rows of its members, first to last."""

    id: str
    members: tuple[Planned, ...]

    @property
    def format(self) -> str:
        """The one format of all members."""
        return self.members[0].format

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the object: rows add up."""
        first = self.members[0].parameter.shape
        return (sum(member.parameter.shape[0] for member in self.members), *first[1:])


def object_chunks(parent: Parent) -> Iterator[np.ndarray]:
    """The payload of a parent as consecutive buffers.

    Raises `ArtifactError` naming the tensor whose words are illegal or whose values cannot be
    encoded.
    """
    divisor = _divisor(parent)

    def parts() -> Iterator[Planes]:
        for begin, end in _row_blocks(parent.shape):
            shape = (end - begin, *parent.shape[1:])
            pieces = [
                _fields(member, first, last, divisor)
                for member, first, last in _members(parent, begin, end)
            ]
            packed = pack_object(parent.format, fuse_rows(parent.format, pieces), shape)
            yield planes(parent.format, shape, np.frombuffer(packed, np.uint8))

    return payload_chunks(parent.format, parent.shape, parts())


def _row_blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Rows of each block; blocks begin at multiples of 128, the tiles of NVFP4 scales.

    [34816, 5120]: 3276 rows would fit, 3200 make a block, 11 blocks.
    """
    columns = int(np.prod(shape[1:]))
    step = max(ELEMENTS_PER_BLOCK // columns // TILE_ROWS, 1) * TILE_ROWS
    for begin in range(0, shape[0], step):
        yield begin, min(begin + step, shape[0])


def _members(parent: Parent, begin: int, end: int) -> Iterator[tuple[Planned, int, int]]:
    """The members that rows `[begin, end)` of a parent touch, with their own rows."""
    offset = 0
    for member in parent.members:
        rows = member.parameter.shape[0]
        first, last = max(begin - offset, 0), min(end - offset, rows)
        if first < last:
            yield member, first, last
        offset += rows


def _divisor(parent: Parent) -> np.float32 | None:
    """Of an NVFP4 parent: that of its words, or the one its largest magnitude asks for."""
    if parent.format != NVFP4 or parent.members[0].imported:
        return parent.members[0].divisor
    largest = 0.0
    for begin, end in _row_blocks(parent.shape):
        for member, first, last in _members(parent, begin, end):
            with _Named(member):
                magnitudes = row_magnitudes(_values(member, first, last))
                require_finite(magnitudes, NVFP4, first)
            largest = max(largest, float(magnitudes.max()))
    return nvfp4_divisor([np.array([[largest]], np.float32)])


def _fields(member: Planned, begin: int, end: int, divisor: np.float32 | None) -> Fields:
    with _Named(member):
        if member.format in DIRECT_FORMATS:
            return {"words": _direct(member, begin, end)}
        if member.imported:
            return _imported(member, begin, end)
        values = _values(member, begin, end)
        if member.format == NVFP4:
            codes, scales, _ = encode_nvfp4(values, divisor)
            return {"codes": codes, "scales": scales, "divisor": divisor}
        if member.format == FP8:
            codes, scales = encode_fp8_rows(values)
        else:
            codes, scales = encode_grouped(values, member.format)
        return {"codes": codes, "scales": scales}


def _imported(member: Planned, begin: int, end: int) -> Fields:
    """Words of the source; a row selection applies to code rows and to their scales alike."""
    if member.format == FP8:
        fields = {
            "codes": _rows(member, member.location.tensor, begin, end),
            "scales": _rows(member, f"{member.module}.weight_scale", begin, end).reshape(-1),
        }
    else:
        codes = _rows(member, f"{member.module}.weight_packed", begin, end)
        scales = _rows(member, f"{member.module}.weight_scale", begin, end)
        if member.format == NVFP4:
            fields = {"codes": codes, "scales": scales, "divisor": member.divisor}
        else:
            codes = unpack_integers(member.format, codes, member.parameter.shape[1])
            fields = {"codes": codes, "scales": scales.view(np.uint16)}
    check_fields(member.format, fields, f"rows from {begin}")
    return fields


def _rows(member: Planned, tensor: str, begin: int, end: int) -> np.ndarray:
    """Words of rows `[begin, end)` of a parameter, from a tensor that has its row order."""
    words, location = member.tensors.words(tensor), member.location
    if location.axes == "taps first":
        words = words[:, 0].T
    elif location.axes == "flat patches":
        words = words.reshape(len(words), -1)
    chosen = slice(begin, end) if location.rows is None else location.rows.select(begin, end)
    return np.ascontiguousarray(words[chosen])


def _values(member: Planned, begin: int, end: int) -> np.ndarray:
    """What encoders take: BF16 words, or float32."""
    words = _rows(member, member.location.tensor, begin, end)
    return words if member.dtype == "BF16" else words.astype(np.float32)


def _direct(member: Planned, begin: int, end: int) -> np.ndarray:
    """Words of a direct format; a conversion that would lose a bit is refused."""
    if member.format == "bf16" and member.dtype == "BF16":
        return _rows(member, member.location.tensor, begin, end)
    if member.words is not None:
        return member.words[begin:end]
    values = _values(member, begin, end)
    if member.format == "fp32":
        return bfloat16_values(values) if member.dtype == "BF16" else values
    words = bfloat16_words(values)
    wrong = bfloat16_values(words) != values
    if wrong.any():
        value = values[wrong][0]
        raise ArtifactError(
            f"{member.dtype} value {value:.9g} is no BF16 number, and this parameter is stored "
            "as BF16; convert the checkpoint to BF16 first"
        )
    return words


class _Named:
    """Prefixes errors with the file and the tensor they are about."""

    def __init__(self, member: Planned):
        self._label = f"{member.tensors.path}: tensor {member.location.tensor!r}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ArtifactError):
            raise ArtifactError(f"{self._label}: {error.message}") from None
