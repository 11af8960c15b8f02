"""Writes an artifact as a Hugging Face checkpoint in compressed-tensors form, without a loss.

NVFP4, FP8 and grouped integer words are copied verbatim, BF16 and FP32 as they are. Where grouped
integers of several widths meet in one tensor, which this form cannot mix, they become the F32
values they denote, after a check that encoding those gives the same words. `convert_checkpoint` of
the result gives back every payload.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.bindings import StoredTensor
from ninfer_jax.artifact.directory import INPUT_DIVISOR
from ninfer_jax.artifact.formats import DIRECT_FORMATS, FP8, GROUPED_FORMATS, NVFP4
from ninfer_jax.artifact.grouped import encode_grouped, groups_per_row
from ninfer_jax.artifact.legacy_names import TEXT_RESOURCES, VISION_RESOURCES
from ninfer_jax.artifact.parameters import Parameter, config_parameters
from ninfer_jax.artifact.reader import Artifact
from ninfer_jax.artifact.requirements import input_divisor
from ninfer_jax.artifact.staging import Staging, require_space
from ninfer_jax.checkpoint.compressed_config import (
    drafter_config,
    model_config,
    quantization_config,
)
from ninfer_jax.checkpoint.packed_integers import pack_integers, packed_columns
from ninfer_jax.checkpoint.safetensors import StreamedTensor, write_safetensors
from ninfer_jax.checkpoint.tensor_names import Location, locate, text_prefix
from ninfer_jax.errors import ArtifactError

DFLASH2_FOLDER = "dflash2"
"""Directory of the drafter inside that of the model."""

_FILE_TYPES = {"bf16": "BF16", "fp32": "F32", "int32": "I32"}


@dataclass(frozen=True)
class Exported:
    """One tensor of the checkpoint and the parameters whose rows it holds."""

    location: Location
    members: tuple[tuple[Location, StoredTensor], ...]
    input_divisor: np.float32 | None

    @property
    def format(self) -> str:
        """The one format of all members, or `grouped` for a mixture of grouped integers."""
        formats = {stored.format for _, stored in self.members}
        return formats.pop() if len(formats) == 1 else "grouped"

    @property
    def module(self) -> str:
        """Name without `.weight`."""
        return self.location.tensor.removesuffix(".weight")


def export_compressed_tensors(artifact: Artifact, folder: Path) -> None:
    """Make `folder` with config, resources and tensors, and a drafter in `folder/dflash2`.

    It appears when it is complete. Raises `ArtifactError` when something of its name exists, the
    disk is too small, a parameter is missing, or something has no lossless form there.
    """
    # An export is not taken up again: no two have the same plan.
    with Staging(folder, {"export": uuid.uuid4().hex}) as staging:
        require_space(folder.parent, artifact.size_bytes)
        unfinished = staging.folder / "export"
        _export(artifact, unfinished)
        staging.publish(unfinished)


def _export(artifact: Artifact, folder: Path) -> None:
    configs = {name: component.config for name, component in artifact.components.items()}
    proposal = artifact.components["text"].proposal
    if proposal is not None and proposal.rows is None:
        raise ArtifactError(f"{artifact.path.name}: a full proposal head cannot be exported")
    parameters = config_parameters(configs, None if proposal is None else proposal.rows)
    prefix = text_prefix("vision" in configs)
    located = [(parameter, locate(parameter, configs, prefix)) for parameter in parameters]
    drafter = [pair for pair in located if pair[0].component == "dflash2"]
    model = [pair for pair in located if pair[0].component != "dflash2"]
    for name, component in artifact.components.items():
        for role in component.resources:
            _write_resource(folder, role, artifact.resource(name, role))
    exported = _collect(artifact, model)
    _write(folder, model_config(configs, _quantization(exported)), exported)
    if drafter:
        config = drafter_config(configs["dflash2"], configs["text"])
        exported = _collect(artifact, drafter)
        quantization = _quantization(exported)
        if quantization:
            config["quantization_config"] = quantization
        _write(folder / DFLASH2_FOLDER, config, exported)


def _write_resource(folder: Path, role: str, data: bytes) -> None:
    """Write a resource under its role, which an artifact may spell as it likes."""
    if role not in TEXT_RESOURCES + VISION_RESOURCES:
        raise ArtifactError(f"resource {role[:80]!a} has no place in a checkpoint")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / role).write_bytes(data)


def _write(folder: Path, config: Mapping[str, Any], exported: Iterable[Exported]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, StreamedTensor] = {}
    for item in exported:
        tensors |= _tensors(item)
    write_safetensors(folder / "model.safetensors", tensors)
    text = json.dumps(config, indent=1)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _collect(artifact: Artifact, located: Iterable[tuple[Parameter, Location]]) -> list[Exported]:
    """Group parameters by tensor, in order."""
    groups: dict[str, list[tuple[Parameter, Location]]] = {}
    for parameter, location in located:
        group = groups.setdefault(location.tensor, [])
        if "/attention/context_" in parameter.name:
            _require_shared(artifact, parameter.name)
            continue
        group.append((parameter, location))
    return [_exported(artifact, group) for group in groups.values() if group]


def _require_shared(artifact: Artifact, context: str) -> None:
    other = context.replace("/context_", "/")
    if artifact.bindings.get(context) != artifact.bindings.get(other):
        raise ArtifactError(
            f"{artifact.path.name}: {context} and {other} are stored apart, a checkpoint has one "
            "tensor for both"
        )


def _exported(artifact: Artifact, group: list[tuple[Parameter, Location]]) -> Exported:
    members = tuple(
        (location, artifact.parameter(parameter.name, parameter.shape))
        for parameter, location in group
    )
    location, label = group[0][1], f"{artifact.path.name}: tensor {group[0][1].tensor!r}"
    formats = sorted({stored.format for _, stored in members})
    if len(formats) > 1 and not set(formats) <= set(GROUPED_FORMATS):
        raise ArtifactError(f"{label}: its rows are stored as {' and '.join(formats)}")
    if formats[0] not in DIRECT_FORMATS and not location.tensor.endswith(".weight"):
        raise ArtifactError(f"{label}: {formats[0]} words have no name there")
    if formats[0] in (FP8, NVFP4) and location.axes != "as stored":
        raise ArtifactError(f"{label}: {formats[0]} words cannot be rearranged")
    names = {parameter.name for parameter, _ in group}
    divisors = {
        input_divisor(artifact, use).tobytes()
        for use in artifact.uses
        if use.parameter in names and INPUT_DIVISOR in use.auxiliaries
    }
    if formats == [NVFP4]:
        words = {np.float32(stored.words()["divisor"]).tobytes() for _, stored in members}
        if len(words) > 1 or len(divisors) > 1:
            raise ArtifactError(f"{label}: its rows have different NVFP4 divisors")
    only = np.frombuffer(divisors.pop(), np.float32)[0] if divisors else None
    return Exported(location, members, only)


def _quantization(exported: list[Exported]) -> dict[str, Any]:
    plain_formats = (*DIRECT_FORMATS, "grouped")
    modules = {item.module: item.format for item in exported if item.format not in plain_formats}
    calibrated = [item.module for item in exported if item.input_divisor is not None]
    plain = [
        item.module
        for item in exported
        if item.module not in modules
        and item.location.tensor.endswith(".weight")
        and len(item.location.shape) == 2
    ]
    return quantization_config(modules, calibrated, plain)


def _tensors(item: Exported) -> dict[str, StreamedTensor]:
    """The tensors of one module: `.weight`, and the scales of its words."""
    name, (rows, *rest), module = item.location.tensor, item.location.shape, item.module
    if item.format in DIRECT_FORMATS:
        return {name: _streamed(item, "words", _FILE_TYPES[item.format], item.location.shape)}
    if item.format == FP8:
        return {
            name: _streamed(item, "codes", "F8_E4M3", item.location.shape),
            f"{module}.weight_scale": _streamed(item, "scales", "BF16", (rows, 1)),
        }
    if item.format == NVFP4:
        columns = rest[0]
        tensors = {
            f"{module}.weight_packed": _streamed(item, "codes", "U8", (rows, columns // 2)),
            f"{module}.weight_scale": _streamed(item, "scales", "F8_E4M3", (rows, columns // 16)),
            f"{module}.weight_global_scale": StreamedTensor(
                "F32", (1,), lambda: (np.float32(item.members[0][1].words()["divisor"]),)
            ),
        }
        if item.input_divisor is not None:
            tensors[f"{module}.input_global_scale"] = StreamedTensor(
                "F32", (1,), lambda: (item.input_divisor,)
            )
        return tensors
    if item.format == "grouped":
        return {name: _streamed(item, "values", "F32", item.location.shape)}
    columns, format = math.prod(rest), item.format
    size = np.array([rows, columns], "<i8")
    return {
        f"{module}.weight_packed": StreamedTensor(
            "I32",
            (rows, packed_columns(format, columns)),
            lambda: (pack_integers(format, _assembled(item, "codes")),),
        ),
        f"{module}.weight_scale": _streamed(
            item, "scales", "F16", (rows, groups_per_row(format, columns))
        ),
        f"{module}.weight_shape": StreamedTensor("I64", (2,), lambda: (size,)),
    }


def _streamed(item: Exported, field: str, dtype: str, shape: tuple[int, ...]) -> StreamedTensor:
    return StreamedTensor(dtype, shape, lambda: (_assembled(item, field).reshape(shape),))


def _assembled(item: Exported, field: str) -> np.ndarray:
    """One field of all rows of a tensor, every member at its rows; the axes of the source."""
    parts = [(location, _field(stored, field)) for location, stored in item.members]
    if item.location.rows is None:
        array = parts[0][1]
    else:
        first = parts[0][1]
        array = np.empty((item.location.shape[0], *first.shape[1:]), first.dtype)
        for location, part in parts:
            array[location.rows.select(0, len(part))] = part
    if item.location.axes == "taps first":
        array = array.T
    return np.ascontiguousarray(array)


def _field(stored: StoredTensor, field: str) -> np.ndarray:
    if field != "values":
        return stored.words()[field]
    fields, values = stored.words(), stored.decode()
    codes, scales = encode_grouped(values, stored.format)
    if not (np.array_equal(codes, fields["codes"]) and np.array_equal(scales, fields["scales"])):
        raise ArtifactError(
            f"{stored.name}: its {stored.format} words are not those the encoder gives for their "
            "values, so F32 values would lose them"
        )
    return values
