"""Artifacts of random words with the complete inventory of a published model.

They are exact in everything but the numbers: names, order, shapes, formats, bindings, uses,
configs. Whatever loads or serves the published file can be tried on one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.directory import Directory, ResourceObject, StoredObject, payload_end
from ninfer_jax.artifact.framing import PAGE, payload_start
from ninfer_jax.artifact.geometry import GEOMETRIES, QWEN_27B, Geometry, with_layers
from ninfer_jax.artifact.inventory import inventory, legacy_text, plan_legacy
from ninfer_jax.artifact.legacy import KNOWN_IDENTITIES, LegacyDirectory
from ninfer_jax.artifact.legacy_names import (
    TEXT_RESOURCES,
    VISION_RESOURCES,
    legacy_divisors,
    legacy_objects,
)
from ninfer_jax.artifact.legacy_writer import write_legacy
from ninfer_jax.artifact.native import native_directory, native_parents
from ninfer_jax.artifact.parameters import COMPONENTS
from ninfer_jax.artifact.synthetic_words import BLOCK_GROUPS, SyntheticWords
from ninfer_jax.artifact.writer import (
    DEFAULT_FILE_LIMIT,
    Progress,
    layout_files,
    write_directory,
)
from ninfer_jax.errors import ArtifactError

# A tiny model is written from a block of a tiny size.
_SMALL_BLOCK_GROUPS = 257


@dataclass(frozen=True)
class SyntheticPlan:
    """An artifact before any word of it exists.

    Attributes:
      container: version, 1 to 3; `directory` is a `LegacyDirectory` below 3.
      sources: tensor object -> the name that determines its words, the same in every container:
        its first logical parameter, or the site of an input divisor.
    """

    container: int
    geometry: Geometry
    directory: Directory | LegacyDirectory
    sources: dict[str, str]

    def file_sizes(self, file_limit: int = DEFAULT_FILE_LIMIT) -> list[int]:
        """Return the bytes of every file that will be written, entry first."""
        size = payload_end(self.directory.objects)
        if isinstance(self.directory, LegacyDirectory):
            return [payload_start(self.container, len(legacy_text(self.directory))) + size]
        text, files = layout_files(self.directory, size, "model.ninfer", file_limit)
        starts = [payload_start(3, len(text))] + [PAGE] * (len(files) - 1)
        return [start + file.payload_bytes for start, file in zip(starts, files, strict=True)]


def plan_synthetic(
    resources: Mapping[str, int],
    *,
    profile: str,
    model_id: str = "qwen3.8-27b",
    layers: int | None = None,
    components: Collection[str] = COMPONENTS,
    container: int = 3,
    seed: int = 0,
) -> SyntheticPlan:
    """Plan an artifact; `resources` is file name -> bytes of the frontend files.

    `layers` cuts the text model; its config then says so. Text is always among the components.
    Raises `ArtifactError` for an unknown model, profile or component, for a missing resource, and
    for what versions 1 and 2 cannot hold: fewer layers or components, NVFP4 in version 1.
    """
    if (model_id, profile) not in KNOWN_IDENTITIES or (model_id, profile) == _UNKNOWN_STORAGE:
        known = ", ".join("/".join(pair) for pair in KNOWN_IDENTITIES if pair != _UNKNOWN_STORAGE)
        raise ArtifactError(f"no inventory of {model_id}/{profile}, expected one of {known}")
    selected = tuple(name for name in COMPONENTS if name == "text" or name in components)
    for name in components:
        if name not in COMPONENTS:
            raise ArtifactError(
                f"unknown component {name!r}, expected some of {', '.join(COMPONENTS)}"
            )
    needed = TEXT_RESOURCES + (VISION_RESOURCES if "vision" in selected else ())
    for file_name in needed:
        if not resources.get(file_name):
            raise ArtifactError(f"resource {file_name!r} is missing or empty")
    ordered = {file_name: resources[file_name] for file_name in needed}
    geometry = GEOMETRIES[model_id]
    if layers is not None:
        geometry = with_layers(geometry, layers)
    if container == 3:
        directory = native_directory(profile, ordered, selected, model_id, geometry)
        directory = replace(directory, provenance={"synthetic": {"seed": seed}})
        sources = _native_sources(directory, profile, selected, geometry)
        return SyntheticPlan(3, geometry, directory, sources)
    if container not in (1, 2):
        raise ArtifactError(f"container version {container}, expected 1, 2 or 3")
    missing = [name for name in COMPONENTS if name not in selected and name != "dflash2"]
    if missing or geometry != GEOMETRIES[model_id]:
        what = f"component {missing[0]!r} is missing" if missing else f"{layers} layers"
        raise ArtifactError(
            f"container version {container} carries no config: {what}, expected the whole model; "
            "choose version 3"
        )
    if container == 1 and profile == "nvfp4":
        raise ArtifactError("container version 1 has no format for profile nvfp4; choose 2 or 3")
    tensors = inventory(profile, selected, model_id)
    legacy = plan_legacy(tensors, ordered, model_id, None if container == 1 else profile)
    return SyntheticPlan(container, geometry, legacy, _legacy_sources(legacy, geometry))


# Its inventory differs from that of Qwen3.8 and is not known.
_UNKNOWN_STORAGE = ("qwen3.6-27b", "nvfp4")


def write_synthetic(
    path: str | Path,
    resources: Mapping[str, bytes],
    *,
    profile: str,
    model_id: str = "qwen3.8-27b",
    layers: int | None = None,
    components: Collection[str] = COMPONENTS,
    container: int = 3,
    seed: int = 0,
    file_limit: int = DEFAULT_FILE_LIMIT,
    progress: Progress = lambda count: None,
) -> list[Path]:
    """Write a synthetic artifact and return its files, entry first.

    The same arguments give the same bytes, artifact id included. `progress` is told the
    payload bytes written. Raises `ArtifactError` as `plan_synthetic`, and when a file exists.
    """
    options: dict[str, Any] = {
        "profile": profile,
        "model_id": model_id,
        "layers": layers,
        "components": tuple(components),
        "container": container,
        "seed": seed,
    }
    sizes = {file_name: len(data) for file_name, data in resources.items()}
    plan = plan_synthetic(sizes, **options)
    words = source_of_words(plan, seed)

    def chunks(stored: StoredObject) -> Iterator[Any]:
        return object_chunks(plan, words, resources, stored)

    directory = plan.directory
    if isinstance(directory, LegacyDirectory):
        return [write_legacy(path, directory, chunks, progress)]
    identity = hashlib.sha256(repr((options, sizes, file_limit)).encode()).digest()[:16]
    return write_directory(
        path,
        directory,
        chunks,
        artifact_id=identity,
        file_limit=file_limit,
        progress=progress,
    )


def source_of_words(plan: SyntheticPlan, seed: int) -> SyntheticWords:
    """Return the source of the words of a plan."""
    is_full = plan.geometry.width == QWEN_27B.width
    groups = BLOCK_GROUPS if is_full else _SMALL_BLOCK_GROUPS
    return SyntheticWords(seed, plan.geometry.public_tokens, groups)


def object_chunks(
    plan: SyntheticPlan,
    words: SyntheticWords,
    resources: Mapping[str, bytes],
    stored: StoredObject,
) -> Iterator[bytes | np.ndarray]:
    """Yield the bytes of one object as consecutive buffers of a few megabytes."""
    if isinstance(stored, ResourceObject):
        yield resources[stored.id.rpartition("/")[2]]
    else:
        yield from words.chunks(plan.sources[stored.id], stored.format, stored.shape)


def _native_sources(
    directory: Directory, profile: str, components: tuple[str, ...], geometry: Geometry
) -> dict[str, str]:
    parents = native_parents(profile, components, geometry)
    sources = {f"weight/{index:06d}": parent[0].name for index, parent in enumerate(parents)}
    sites = {
        parameter: site
        for site, parameters in legacy_divisors(geometry).items()
        for parameter in parameters
    }
    for use in directory.uses:
        for binding in use.auxiliaries.values():
            sources[binding.object] = sites[use.parameter]
    return sources


def _legacy_sources(legacy: LegacyDirectory, geometry: Geometry) -> dict[str, str]:
    holders = legacy_objects(geometry)
    return {
        id: holders[id][0].parameter if id in holders else id
        for id, stored in legacy.objects.items()
        if not isinstance(stored, ResourceObject)
    }
