"""Directories of versions 1 and 2, and their translation into the version 3 form.

Spellings are translated, fused objects become bindings, and the components that those files do not
declare are supplied from the published configs, selected by the identity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ninfer_jax.artifact.directory import (
    INPUT_DIVISOR,
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
    check_storage,
)
from ninfer_jax.artifact.formats import FP8, LEGACY_FORMATS, LEGACY_RAW_BYTES, NVFP4
from ninfer_jax.artifact.geometry import GEOMETRIES, QWEN_27B, Geometry
from ninfer_jax.artifact.legacy_names import (
    legacy_divisors,
    legacy_objects,
    resource_owner,
)
from ninfer_jax.artifact.parameters import COMPONENTS, model_parameters
from ninfer_jax.artifact.published_configs import (
    dflash2_config,
    mtp_config,
    text_config,
    vision_config,
)
from ninfer_jax.artifact.records import Record
from ninfer_jax.errors import ArtifactError

KNOWN_IDENTITIES = (
    ("qwen3.8-27b", "nvfp4"),
    ("qwen3.8-27b", "groupwise-int"),
    ("qwen3.6-27b", "nvfp4"),
    ("qwen3.6-27b", "groupwise-int"),
    ("ninfer-tiny", "nvfp4"),
    ("ninfer-tiny", "groupwise-int"),
)


@dataclass(frozen=True)
class LegacyDirectory:
    """A checked directory of version 1 or 2; `weights_id` is None in version 1.

    `objects` is keyed by name and already has the version 3 spellings.
    """

    version: int
    model_id: str
    weights_id: str | None
    objects: dict[str, StoredObject]


def parse_legacy(document: object, version: int, payload_bytes: int) -> LegacyDirectory:
    """Return the directory; raises `ArtifactError` for anything section 8 lists for it."""
    root = Record(document, "directory")
    if version == 1:
        root.close(("model_id", "objects"))
        model_id, weights_id = root.identifier("model_id"), None
    else:
        root.close(("identity", "objects"))
        identity = root.record("identity").close(("model_id", "weights_id"))
        model_id, weights_id = (
            identity.identifier("model_id"),
            identity.identifier("weights_id"),
        )
    objects: dict[str, StoredObject] = {}
    for index, value in enumerate(root.array("objects", at_least=1)):
        stored = _object(Record(value, f"objects[{index}]"), version)
        if stored.id in objects:
            raise ArtifactError(f"objects[{index}]: duplicate name {stored.id!r}")
        objects[stored.id] = stored
    check_placement(objects, payload_bytes, "truncated file")
    return LegacyDirectory(version, model_id, weights_id, objects)


def _object(record: Record, version: int) -> StoredObject:
    if "kind" not in record:
        raise ArtifactError(f"{record.label}: missing member 'kind'")
    kind = record.value["kind"]
    if kind == "resource":
        record.close(("name", "kind", "encoding", "offset", "bytes"))
        encoding = record.identifier("encoding")
        if encoding != LEGACY_RAW_BYTES:
            raise ArtifactError(
                f"{record.label}: unknown encoding {encoding!r}, expected {LEGACY_RAW_BYTES!r}"
            )
        return ResourceObject(
            record.identifier("name"),
            record.integer("offset"),
            record.integer("bytes", 1),
        )
    if kind != "tensor":
        raise ArtifactError(
            f"{record.label}: unknown kind {str(kind)[:80]!a}, expected 'tensor' or 'resource'"
        )
    record.close(("name", "kind", "shape", "format", "layout", "offset", "bytes"))
    name = record.identifier("name")
    spelled = record.identifier("format")
    known = LEGACY_FORMATS.get(spelled)
    if known is None or known.since > version:
        admitted = [
            entry.legacy_name for entry in LEGACY_FORMATS.values() if entry.since <= version
        ]
        raise ArtifactError(
            f"object {name!r}: unknown format {spelled!r} in version {version}, "
            f"expected one of {', '.join(admitted)}"
        )
    layout = record.identifier("layout")
    if layout != known.legacy_layout:
        raise ArtifactError(
            f"object {name!r}: layout {layout!r} is not that of format {spelled!r}, "
            f"expected {known.legacy_layout!r}"
        )
    tensor = TensorObject(
        name,
        record.shape("shape"),
        known.name,
        known.layout,
        record.integer("offset"),
        record.integer("bytes", 1),
    )
    check_storage(tensor)
    return tensor


def upgrade_directory(legacy: LegacyDirectory, payload_bytes: int) -> Directory:
    """Return the version 3 directory that describes the same payload; object ids are the names.

    Raises `ArtifactError` for an unknown identity, an unexpected object, a wrong shape, and a
    missing parameter.
    """
    weights_id = legacy.weights_id or "groupwise-int"
    if (legacy.model_id, weights_id) not in KNOWN_IDENTITIES:
        found = legacy.model_id if legacy.version == 1 else f"{legacy.model_id}/{weights_id}"
        known = ", ".join("/".join(pair) for pair in KNOWN_IDENTITIES)
        raise ArtifactError(f"unknown identity {found!r}, expected one of {known}")
    has_dflash2 = any(name.startswith("dflash2/") for name in legacy.objects)
    components = ("text", "mtp", "vision", "proposal") + ("dflash2",) * has_dflash2
    geometry = GEOMETRIES[legacy.model_id]
    bindings, divisors, resources = _bind(legacy, geometry)
    parameters = model_parameters(components, geometry)
    for parameter in parameters:
        if parameter.name not in bindings:
            raise ArtifactError(f"parameter {parameter.name!r} is missing: no object holds it")
    uses = []
    for parameter in parameters:
        policy = activation_policy(_format(bindings[parameter.name], legacy.objects))
        auxiliaries = {}
        if parameter.name in divisors:
            auxiliaries[INPUT_DIVISOR] = Binding(object=divisors[parameter.name])
        uses += [Use(parameter.name, name, policy, auxiliaries) for name in parameter.inputs]
    origin = {
        "version": legacy.version,
        "model_id": legacy.model_id,
        "weights_id": weights_id,
    }
    return Directory(
        components=published_components(resources, has_dflash2, geometry),
        objects=legacy.objects,
        bindings={parameter.name: bindings[parameter.name] for parameter in parameters},
        uses=tuple(uses),
        files=(FileEntry(None, payload_bytes),),
        metadata={"name": legacy.model_id},
        provenance={"upgraded_from": origin},
    )


def activation_policy(format: str) -> str:
    """Return the permission that a use of a parameter of this format gets."""
    return {NVFP4: "AllowA4", FP8: "AllowA8"}.get(format, "A16Only")


def published_components(
    resources: dict[str, dict[str, str]], has_dflash2: bool, geometry: Geometry = QWEN_27B
) -> dict[str, Component]:
    """Return the components of the published models; `resources` is component -> role -> id."""
    components = {
        "text": Component(
            text_config(geometry),
            None,
            resources["text"],
            Proposal("indexed", geometry.proposal_rows),
        ),
        "vision": Component(vision_config(geometry), "text", resources["vision"]),
        "mtp": Component(mtp_config(), "text"),
    }
    if has_dflash2:
        components["dflash2"] = Component(dflash2_config(geometry), "text")
    return components


def _bind(
    legacy: LegacyDirectory, geometry: Geometry
) -> tuple[dict[str, Binding], dict[str, str], dict[str, dict[str, str]]]:
    """Return parameter -> binding, parameter -> divisor object, component -> role -> resource."""
    known, sites = legacy_objects(geometry), legacy_divisors(geometry)
    shapes = {
        parameter.name: parameter.shape for parameter in model_parameters(COMPONENTS, geometry)
    }
    bindings: dict[str, Binding] = {}
    divisors: dict[str, str] = {}
    resources: dict[str, dict[str, str]] = {"text": {}, "vision": {}}
    for name, stored in legacy.objects.items():
        if isinstance(stored, ResourceObject):
            folder, _, file_name = name.partition("/")
            if folder != "frontend" or not file_name or "/" in file_name:
                raise ArtifactError(f"unexpected resource {name!r}, expected 'frontend/<file>'")
            resources[resource_owner(file_name)][file_name] = name
            continue
        if name in sites:
            if stored.shape or stored.format != "fp32":
                raise ArtifactError(
                    f"object {name!r}: {stored.format} {list(stored.shape)}, "
                    "expected an fp32 scalar"
                )
            divisors.update(dict.fromkeys(sites[name], name))
            continue
        if name not in known:
            raise ArtifactError(f"unexpected object {name!r}")
        shares = known[name]
        expected = shapes[shares[0].parameter]
        if shares[0].end is not None:
            expected = (max(share.end for share in shares), *expected[1:])
        if stored.shape != expected:
            raise ArtifactError(
                f"object {name!r}: shape {list(stored.shape)}, expected {list(expected)}"
            )
        width = math.prod(expected[1:])
        for share in shares:
            if share.parameter in bindings:
                raise ArtifactError(f"unexpected object {name!r}: its rows are stored twice")
            if share.end is None:
                bindings[share.parameter] = Binding(object=name)
            else:
                part = Part(name, share.begin * width, share.end * width)
                bindings[share.parameter] = Binding(parts=(part,))
    return bindings, divisors, resources


def _format(binding: Binding, objects: dict[str, StoredObject]) -> str:
    return objects[binding.object or binding.parts[0].object].format
