"""From a binding to the stored rows of a parameter, and from those to numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ninfer_jax.artifact.codecs import Fields, decode_fields, fuse_rows
from ninfer_jax.artifact.directory import (
    Binding,
    StoredObject,
    TensorObject,
    check_storage,
)
from ninfer_jax.artifact.formats import DIRECT_FORMATS
from ninfer_jax.artifact.sources import ObjectSource
from ninfer_jax.errors import ArtifactError


@dataclass(frozen=True)
class Piece:
    """Elements `[begin, end)`, in C order, of one parent object."""

    parent: TensorObject
    begin: int
    end: int


@dataclass(frozen=True)
class StoredTensor:
    """A parameter as it is stored: its name, version 3 format, shape, and where its words are."""

    name: str
    format: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    _source: ObjectSource = field(repr=False, compare=False)

    def words(self) -> Fields:
        """Return the fields in natural row order, as `codecs` lists them; reads only these rows.

        Raises `ArtifactError` for a short read, a bad NVFP4 divisor, or pieces whose divisors
        differ.
        """
        parts = []
        for piece in self.pieces:
            try:
                parts.append(self._source.fields(piece.parent, piece.begin, piece.end))
            except ArtifactError as error:
                raise ArtifactError(
                    f"parameter {self.name!r}: object {piece.parent.id!r}: {error.message}"
                ) from None
        try:
            fields = fuse_rows(self.format, parts)
        except ArtifactError as error:
            raise ArtifactError(f"parameter {self.name!r}: {error.message}") from None
        if self.format in DIRECT_FORMATS:
            fields["words"] = fields["words"].reshape(self.shape)
        return fields

    def decode(self) -> np.ndarray:
        """Return the exact values in `shape`: float32, or int32 for format `int32`."""
        return decode_fields(self.format, self.words())


def resolve_binding(
    name: str,
    binding: Binding,
    objects: Mapping[str, StoredObject],
    source: ObjectSource,
    shape: tuple[int, ...] | None,
) -> StoredTensor:
    """Resolve a parameter and check what can be checked without reading the payload.

    A whole object must have exactly `shape`; parts must add up to its elements. Packed formats
    are cut at whole rows, and all parts have one format. Without `shape` it is derived: rows of
    the parents' common width, else a vector.
    """
    label = f"parameter {name!r}"
    if binding.object is not None:
        parent = _tensor(objects, binding.object)
        pieces = (Piece(parent, 0, parent.elements),)
        if shape is not None and parent.shape != shape:
            raise ArtifactError(
                f"{label}: object {parent.id!r} has shape {list(parent.shape)}, "
                f"expected {list(shape)}"
            )
        shape = parent.shape
    else:
        pieces = tuple(
            Piece(_tensor(objects, part.object), part.begin, part.end) for part in binding.parts
        )
        shape = _shape_of_parts(label, pieces, shape)
    for parent in {piece.parent.id: piece.parent for piece in pieces}.values():
        try:
            check_storage(parent)
        except ArtifactError as error:
            raise ArtifactError(f"{label}: {error.message}") from None
    formats = sorted({piece.parent.format for piece in pieces})
    if len(formats) > 1:
        raise ArtifactError(f"{label}: parts of different formats {', '.join(formats)}")
    if formats[0] not in DIRECT_FORMATS:
        _check_rows(label, pieces, shape)
    return StoredTensor(name, formats[0], shape, pieces, source)


def _tensor(objects: Mapping[str, StoredObject], name: str) -> TensorObject:
    stored = objects[name]
    assert isinstance(stored, TensorObject), "the directory binds tensors only"
    return stored


def _shape_of_parts(
    label: str, pieces: tuple[Piece, ...], shape: tuple[int, ...] | None
) -> tuple[int, ...]:
    total = sum(piece.end - piece.begin for piece in pieces)
    if shape is not None:
        if total != math.prod(shape):
            raise ArtifactError(
                f"{label}: its parts hold {total} elements, expected {math.prod(shape)} "
                f"for shape {list(shape)}"
            )
        return shape
    # Parts may overlap: without a shape to bound them, they could ask for any amount of memory.
    stored = sum({piece.parent.id: piece.parent.elements for piece in pieces}.values())
    if total > stored:
        raise ArtifactError(f"{label}: its parts hold {total} elements of {stored} stored ones")
    trailing = {piece.parent.shape[1:] for piece in pieces}
    width = math.prod(pieces[0].parent.shape[1:])
    whole_rows = all(piece.begin % width == 0 == piece.end % width for piece in pieces)
    if len(trailing) == 1 and whole_rows and pieces[0].parent.shape:
        return (total // width, *pieces[0].parent.shape[1:])
    return (total,)


def _check_rows(label: str, pieces: tuple[Piece, ...], shape: tuple[int, ...]) -> None:
    for piece in pieces:
        columns = piece.parent.shape[1]
        if shape[1:] != (columns,):
            raise ArtifactError(
                f"{label}: shape {list(shape)} is not made of rows of {columns} columns, the width "
                f"of object {piece.parent.id!r} ({piece.parent.format})"
            )
        if piece.begin % columns or piece.end % columns:
            raise ArtifactError(
                f"{label}: range [{piece.begin}, {piece.end}) of object {piece.parent.id!r} "
                f"does not begin and end at rows of {columns} columns ({piece.parent.format})"
            )
