"""The tokenizer and preprocessor files that travel inside an artifact, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ninfer_jax.artifact.legacy_names import TEXT_RESOURCES, VISION_RESOURCES, resource_owner
from ninfer_jax.artifact.strict_json import parse_json
from ninfer_jax.artifact.writer import ResourceToWrite
from ninfer_jax.errors import ArtifactError


def read_resources(folder: Path, components: Iterable[str]) -> dict[str, bytes]:
    """File name -> content, in stored order; `ArtifactError` names a missing or empty file."""
    names = TEXT_RESOURCES + (VISION_RESOURCES if "vision" in components else ())
    found = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise ArtifactError(f"{folder}: resource {name!r} is missing; copy it there")
        found[name] = path.read_bytes()
        if not found[name]:
            raise ArtifactError(f"{path}: the resource is empty")
    return found


def resource_id(name: str) -> str:
    """Object id of a resource: `resource/text/tokenizer.json`."""
    return f"resource/{resource_owner(name)}/{name}"


def resource_roles(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Component -> role -> object id."""
    roles: dict[str, dict[str, str]] = {"text": {}, "vision": {}}
    for name in names:
        roles[resource_owner(name)][name] = resource_id(name)
    return roles


def resources_to_write(resources: dict[str, bytes]) -> list[ResourceToWrite]:
    """The resource objects, in the order of `resources`."""
    return [ResourceToWrite(resource_id(name), data) for name, data in resources.items()]


def check_patches(resources: Mapping[str, bytes], vision: Mapping[str, Any]) -> None:
    """Raise `ArtifactError` unless both preprocessors have the patch geometry of the config."""
    for role in VISION_RESOURCES:
        record = parse_json(resources[role], role)
        for member, key in (
            ("patch_size", "patch_size"),
            ("temporal_patch_size", "temporal_patch_size"),
            ("merge_size", "spatial_merge_size"),
        ):
            found = record.get(member) if isinstance(record, dict) else None
            if found != vision[key]:
                raise ArtifactError(
                    f"resource {role!r}: {member} is {str(found)[:80]}, expected {vision[key]} "
                    f"as {key} of the vision config"
                )
