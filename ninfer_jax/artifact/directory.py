"""The directory of a version 3 artifact, as frozen records, and its JSON form.

Containers of version 1 and 2 are translated into the same records, so everything behind the reader
knows one directory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ninfer_jax.artifact.codecs import encoded_bytes
from ninfer_jax.artifact.formats import FORMATS, RAW_BYTES, TENSOR_ALIGNMENT
from ninfer_jax.errors import ArtifactError

POLICIES = ("A16Only", "AllowA8", "AllowA4")
INPUT_DIVISOR = "activation_input_divisor"


@dataclass(frozen=True)
class Proposal:
    """Declaration of the proposal head: `full`, or `indexed` with a number of rows."""

    domain: str
    rows: int | None = None


@dataclass(frozen=True)
class Component:
    """One model part that the artifact provides: its config, its target, its resources."""

    config: dict[str, Any]
    target: str | None = None
    resources: dict[str, str] = field(default_factory=dict)
    proposal: Proposal | None = None


@dataclass(frozen=True)
class TensorObject:
    """A stored tensor; `offset` counts from the start of the logical payload."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    offset: int
    bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def alignment(self) -> int:
        return TENSOR_ALIGNMENT


@dataclass(frozen=True)
class ResourceObject:
    """A stored file, byte for byte."""

    id: str
    offset: int
    bytes: int
    encoding: str = RAW_BYTES

    @property
    def alignment(self) -> int:
        return 1


StoredObject = TensorObject | ResourceObject


@dataclass(frozen=True)
class Part:
    """Elements `[begin, end)`, in C order, of a tensor object."""

    object: str
    begin: int
    end: int


@dataclass(frozen=True)
class Binding:
    """Where a parameter is stored: one whole object, or the concatenation of parts."""

    object: str | None = None
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Use:
    """Permission for the activation operand of (parameter, input), with auxiliary tensors."""

    parameter: str
    input: str
    activation_policy: str | None = None
    auxiliaries: dict[str, Binding] = field(default_factory=dict)


@dataclass(frozen=True)
class FileEntry:
    """One file of the set; the entry file itself has no path."""

    path: str | None
    payload_bytes: int


@dataclass(frozen=True)
class Directory:
    """Everything a version 3 artifact says about itself."""

    components: dict[str, Component]
    objects: dict[str, StoredObject]
    bindings: dict[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[FileEntry, ...]
    metadata: dict[str, Any] | None = None
    provenance: dict[str, Any] | None = None


def check_storage(tensor: TensorObject) -> None:
    """Check what interpreting a tensor needs: known format and layout, alignment, encoded size."""
    known = FORMATS.get(tensor.format)
    if known is None:
        raise ArtifactError(
            f"object {tensor.id!r}: unknown format {tensor.format!r}, "
            f"expected one of {', '.join(FORMATS)}"
        )
    if tensor.layout != known.layout:
        raise ArtifactError(
            f"object {tensor.id!r}: layout {tensor.layout!r} is not that of format "
            f"{tensor.format!r}, expected {known.layout!r}"
        )
    if tensor.offset % TENSOR_ALIGNMENT:
        raise ArtifactError(
            f"object {tensor.id!r}: offset {tensor.offset} is not a multiple of {TENSOR_ALIGNMENT}"
        )
    try:
        expected = encoded_bytes(tensor.format, tensor.shape)
    except ArtifactError as error:
        raise ArtifactError(f"object {tensor.id!r}: {error.message}") from None
    if tensor.bytes != expected:
        raise ArtifactError(
            f"object {tensor.id!r}: {tensor.bytes} bytes stored, expected {expected} for "
            f"{tensor.format} {list(tensor.shape)}"
        )


def check_placement(objects: Mapping[str, StoredObject], payload_bytes: int, short: str) -> None:
    """Check that objects are in order, disjoint and inside the payload; `short` words the last."""
    end = 0
    for stored in objects.values():
        if stored.offset < end:
            raise ArtifactError(
                f"object {stored.id!r}: offset {stored.offset} is before {end}, "
                "the end of the previous object"
            )
        end = stored.offset + stored.bytes
        if end > payload_bytes:
            raise ArtifactError(
                f"{short}: object {stored.id!r} ends at {end}, the payload at {payload_bytes}"
            )


def payload_end(objects: Mapping[str, StoredObject]) -> int:
    """Return where the last object ends in the logical payload."""
    return max((stored.offset + stored.bytes for stored in objects.values()), default=0)


def directory_document(directory: Directory) -> dict[str, Any]:
    """Return the JSON document of a directory, members in the order a writer emits them."""
    document: dict[str, Any] = {
        "components": {
            name: _component_record(component) for name, component in directory.components.items()
        },
        "objects": [_object_record(stored) for stored in directory.objects.values()],
        "bindings": {
            name: _binding_record(binding) for name, binding in directory.bindings.items()
        },
        "uses": [_use_record(use) for use in directory.uses],
        "files": [
            {"path": entry.path, "payload_bytes": entry.payload_bytes} for entry in directory.files
        ],
    }
    if directory.metadata is not None:
        document["metadata"] = directory.metadata
    if directory.provenance is not None:
        document["provenance"] = directory.provenance
    return document


def _component_record(component: Component) -> dict[str, Any]:
    record: dict[str, Any] = {"config": component.config}
    if component.target is not None:
        record["target"] = component.target
    if component.resources:
        record["resources"] = component.resources
    if component.proposal is not None:
        record["proposal"] = {"domain": component.proposal.domain}
        if component.proposal.rows is not None:
            record["proposal"]["rows"] = component.proposal.rows
    return record


def _object_record(stored: StoredObject) -> dict[str, Any]:
    if isinstance(stored, TensorObject):
        return {
            "id": stored.id,
            "kind": "tensor",
            "shape": list(stored.shape),
            "format": stored.format,
            "layout": stored.layout,
            "offset": stored.offset,
            "bytes": stored.bytes,
        }
    return {
        "id": stored.id,
        "kind": "resource",
        "encoding": stored.encoding,
        "offset": stored.offset,
        "bytes": stored.bytes,
    }


def _binding_record(binding: Binding) -> dict[str, Any]:
    if binding.object is not None:
        return {"object": binding.object}
    return {
        "parts": [
            {"object": part.object, "range": [part.begin, part.end]} for part in binding.parts
        ]
    }


def _use_record(use: Use) -> dict[str, Any]:
    record: dict[str, Any] = {"parameter": use.parameter, "input": use.input}
    if use.activation_policy is not None:
        record["activation_policy"] = use.activation_policy
    if use.auxiliaries:
        record["auxiliaries"] = {
            role: _binding_record(binding) for role, binding in use.auxiliaries.items()
        }
    return record
