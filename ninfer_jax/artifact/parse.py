"""From the JSON document of a version 3 entry file to a checked `Directory`.

Everything that can be wrong without reading the payload is found here, with the record named.
"""

from __future__ import annotations

from typing import Any

from ninfer_jax.artifact.directory import (
    POLICIES,
    Binding,
    Component,
    Directory,
    FileEntry,
    Part,
    Proposal,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
    check_placement,
)
from ninfer_jax.artifact.formats import RAW_BYTES
from ninfer_jax.artifact.records import MAXIMUM_INTEGER, Record, identifier, integer
from ninfer_jax.errors import ArtifactError


def parse_directory(document: object, entry_name: str) -> Directory:
    """Return the directory; raises `ArtifactError` for anything section 8 lists for version 3.

    `entry_name` is the file name under which the entry was opened: no part may have it.
    """
    root = Record(document, "directory")
    root.close(
        ("components", "objects", "bindings", "uses", "files"),
        ("metadata", "provenance"),
    )
    files = _files(root, entry_name)
    objects = _objects(root)
    payload_bytes = sum(entry.payload_bytes for entry in files)
    if payload_bytes > MAXIMUM_INTEGER:
        raise ArtifactError("directory.files: payload sizes add up beyond 2^64-1 bytes")
    check_placement(objects, payload_bytes, "truncated payload")
    bindings = {
        identifier(name, "bindings: parameter name"): _binding(
            Record(value, f"binding {name!r}"), objects
        )
        for name, value in root.record("bindings").value.items()
    }
    return Directory(
        components=_components(root.record("components"), objects),
        objects=objects,
        bindings=bindings,
        uses=_uses(root, objects, bindings),
        files=files,
        metadata=_metadata(root),
        provenance=root.record("provenance").value if "provenance" in root else None,
    )


def _metadata(root: Record) -> dict[str, Any] | None:
    if "metadata" not in root:
        return None
    metadata = root.record("metadata")
    if "name" in metadata:
        metadata.identifier("name")
    return metadata.value


def _files(root: Record, entry_name: str) -> tuple[FileEntry, ...]:
    entries: list[FileEntry] = []
    taken = {entry_name}
    for index, value in enumerate(root.array("files", at_least=1)):
        label = f"files[{index}]"
        record = Record(value, label).close(("path", "payload_bytes"))
        path = record.value["path"]
        if index == 0:
            if path is not None:
                raise ArtifactError(f"{label}.path: {path!a}, expected null for the entry file")
        else:
            path = record.identifier("path")
            if "/" in path or "\\" in path or path in (".", ".."):
                raise ArtifactError(f"{label}.path: {path!r} is not a plain sibling file name")
            if path in taken:
                raise ArtifactError(
                    f"{label}.path: {path!r} is the entry file itself or occurs twice"
                )
            taken.add(path)
        entries.append(FileEntry(path, record.integer("payload_bytes", 1)))
    return tuple(entries)


def _objects(root: Record) -> dict[str, StoredObject]:
    objects: dict[str, StoredObject] = {}
    for index, value in enumerate(root.array("objects", at_least=1)):
        record = Record(value, f"objects[{index}]")
        stored = _object(record)
        if stored.id in objects:
            raise ArtifactError(f"objects[{index}]: duplicate id {stored.id!r}")
        objects[stored.id] = stored
    return objects


def _object(record: Record) -> StoredObject:
    kind = record.value.get("kind")
    if kind == "tensor":
        record.close(("id", "kind", "shape", "format", "layout", "offset", "bytes"))
        return TensorObject(
            record.identifier("id"),
            record.shape("shape"),
            record.identifier("format"),
            record.identifier("layout"),
            record.integer("offset"),
            record.integer("bytes", 1),
        )
    if kind == "resource":
        record.close(("id", "kind", "encoding", "offset", "bytes"))
        encoding = record.identifier("encoding")
        if encoding != RAW_BYTES:
            raise ArtifactError(
                f"{record.label}: unknown encoding {encoding!r}, expected {RAW_BYTES!r}"
            )
        return ResourceObject(
            record.identifier("id"),
            record.integer("offset"),
            record.integer("bytes", 1),
            encoding,
        )
    if "kind" not in record:
        raise ArtifactError(f"{record.label}: missing member 'kind'")
    raise ArtifactError(
        f"{record.label}: unknown kind {str(kind)[:80]!a}, expected 'tensor' or 'resource'"
    )


def _tensor(name: str, objects: dict[str, StoredObject], label: str) -> TensorObject:
    stored = objects.get(name)
    if stored is None:
        raise ArtifactError(f"{label}: no object {name!r}")
    if not isinstance(stored, TensorObject):
        raise ArtifactError(f"{label}: object {name!r} is a resource, expected a tensor")
    return stored


def _binding(record: Record, objects: dict[str, StoredObject]) -> Binding:
    if ("object" in record) == ("parts" in record):
        raise ArtifactError(f"{record.label}: expected exactly one of 'object' and 'parts'")
    if "object" in record:
        record.close(("object",))
        name = record.identifier("object")
        _tensor(name, objects, record.label)
        return Binding(object=name)
    record.close(("parts",))
    parts = []
    for index, value in enumerate(record.array("parts", at_least=1)):
        part = Record(value, f"{record.label}.parts[{index}]").close(("object", "range"))
        name = part.identifier("object")
        stored = _tensor(name, objects, part.label)
        bounds = part.array("range")
        if len(bounds) != 2:
            raise ArtifactError(f"{part.label}.range: {len(bounds)} entries, expected [begin, end]")
        begin, end = (integer(bound, f"{part.label}.range") for bound in bounds)
        if not begin < end <= stored.elements:
            raise ArtifactError(
                f"{part.label}: range [{begin}, {end}) is empty, reversed or beyond the "
                f"{stored.elements} elements of object {name!r}"
            )
        parts.append(Part(name, begin, end))
    return Binding(parts=tuple(parts))


def _uses(
    root: Record, objects: dict[str, StoredObject], bindings: dict[str, Binding]
) -> tuple[Use, ...]:
    uses: dict[tuple[str, str], Use] = {}
    for index, value in enumerate(root.array("uses")):
        record = Record(value, f"uses[{index}]")
        record.close(("parameter", "input"), ("activation_policy", "auxiliaries"))
        parameter, source = record.identifier("parameter"), record.identifier("input")
        label = f"use {parameter}@{source}"
        if parameter not in bindings:
            raise ArtifactError(f"{label}: parameter {parameter!r} has no binding")
        if (parameter, source) in uses:
            raise ArtifactError(f"{label}: occurs twice")
        policy = None
        if "activation_policy" in record:
            policy = record.identifier("activation_policy")
            if policy not in POLICIES:
                raise ArtifactError(
                    f"{label}: unknown activation_policy {policy!r}, "
                    f"expected one of {', '.join(POLICIES)}"
                )
        auxiliaries = {}
        if "auxiliaries" in record:
            for role, binding in record.record("auxiliaries").value.items():
                role = identifier(role, f"{label}: auxiliary role")
                auxiliaries[role] = _binding(Record(binding, f"{label}.{role}"), objects)
        uses[parameter, source] = Use(parameter, source, policy, auxiliaries)
    return tuple(uses.values())


def _components(root: Record, objects: dict[str, StoredObject]) -> dict[str, Component]:
    if "text" not in root:
        raise ArtifactError("components: missing 'text'")
    components = {}
    for name, value in root.value.items():
        name = identifier(name, "components: name")
        record = Record(value, f"component {name!r}")
        if "proposal" in record and name != "text":
            raise ArtifactError(f"component {name!r}: 'proposal' is allowed in 'text' only")
        record.close(("config",), ("target", "resources", "proposal"))
        target = record.identifier("target") if "target" in record else None
        if target is not None and target not in root:
            raise ArtifactError(f"component {name!r}: target {target!r} is not a component")
        components[name] = Component(
            config=record.record("config").value,
            target=target,
            resources=_resources(record, objects),
            proposal=_proposal(record.record("proposal")) if "proposal" in record else None,
        )
    return components


def _resources(record: Record, objects: dict[str, StoredObject]) -> dict[str, str]:
    resources: dict[str, str] = {}
    if "resources" not in record:
        return resources
    listed = record.record("resources")
    for role, name in listed.value.items():
        role = identifier(role, f"{listed.label}: role")
        name = identifier(name, f"{listed.label}.{role}")
        stored = objects.get(name)
        if not isinstance(stored, ResourceObject):
            problem = "does not exist" if stored is None else "is a tensor, expected a resource"
            raise ArtifactError(f"{listed.label}: role {role!r}: object {name!r} {problem}")
        resources[role] = name
    return resources


def _proposal(record: Record) -> Proposal:
    record.close(("domain",), ("rows",))
    domain = record.identifier("domain")
    if domain == "full":
        if "rows" in record:
            raise ArtifactError(f"{record.label}: domain 'full' takes no 'rows'")
        return Proposal("full")
    if domain != "indexed":
        raise ArtifactError(
            f"{record.label}: unknown domain {domain!r}, expected 'full' or 'indexed'"
        )
    if "rows" not in record:
        raise ArtifactError(f"{record.label}: domain 'indexed' needs 'rows'")
    return Proposal("indexed", record.integer("rows", 1))
