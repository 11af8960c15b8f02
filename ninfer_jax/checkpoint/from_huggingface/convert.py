"""A Hugging Face checkpoint becomes a `.ninfer` artifact, one object at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.directory import Component, Proposal
from ninfer_jax.artifact.parameters import PROFILES
from ninfer_jax.artifact.staging import file_stamp
from ninfer_jax.artifact.writer import TensorToWrite, write_artifact
from ninfer_jax.checkpoint.from_huggingface.inputs import Inputs, open_inputs
from ninfer_jax.checkpoint.from_huggingface.payload import Parent, object_chunks
from ninfer_jax.checkpoint.from_huggingface.plan import Plan, plan_objects
from ninfer_jax.checkpoint.from_huggingface.resources import resource_roles, resources_to_write
from ninfer_jax.errors import ArtifactError

ConversionProgress = Callable[[str, int], None]
"""Told the object being written and how many payload bytes were written since the last call."""


def convert_checkpoint(
    source: Path,
    destination: Path,
    *,
    profile: str,
    base: Path | None,
    dflash2: Path | None,
    frequencies: Path | None,
    file_limit: int,
    progress: ConversionProgress,
) -> list[Path]:
    """Convert a checkpoint directory; return the files of the artifact, entry first.

    Args:
      source: BF16 checkpoint, or compressed-tensors one (NVFP4 and FP8 words are kept verbatim).
      profile: `nvfp4` or `groupwise-int`.
      base: BF16 checkpoint of the same model: gives embedding, MTP, vision, proposal rows and
        resources in `nvfp4`, everything in `groupwise-int`. The source gives them without it.
      dflash2: checkpoint of a DFlash2 drafter for this model.
      frequencies: token frequencies, for which a proposal head is made (`frequencies.py`).
      file_limit: bytes of one file at most.

    An interrupted conversion goes on where it stopped. Raises `ArtifactError` naming whatever is
    missing, contradicts the architecture, or cannot be represented.
    """
    if profile not in PROFILES:
        raise ArtifactError(f"profile {profile!r}, expected one of {', '.join(PROFILES)}")
    inputs = open_inputs(source, profile, base, dflash2, frequencies)
    plan = plan_objects(inputs.planned, profile)
    reporter = _Reporter(progress)
    tensors = [_weight(parent, reporter) for parent in plan.parents]
    tensors += [_divisor(id, value, reporter) for id, value in plan.divisors.items()]
    return write_artifact(
        destination,
        components=components(inputs),
        tensors=tensors,
        resources=resources_to_write(inputs.resources),
        bindings=plan.bindings,
        uses=plan.uses,
        metadata={"name": source.resolve().name.lower()},
        provenance=_provenance(source, profile, base, dflash2, frequencies),
        file_limit=file_limit,
        source=_identity(inputs, plan, frequencies),
        progress=reporter.wrote,
    )


def components(inputs: Inputs) -> dict[str, Component]:
    """The components of the directory, text first, then those the checkpoints have."""
    roles = resource_roles(inputs.resources)
    rows = inputs.proposal_rows
    proposal = None if rows is None else Proposal("indexed", rows)
    described = {"text": Component(inputs.configs["text"], None, roles["text"], proposal)}
    for name in ("vision", "mtp", "dflash2"):
        if name in inputs.configs:
            described[name] = Component(inputs.configs[name], "text", roles.get(name, {}))
    return described


class _Reporter:
    """Adds the object at work to the byte counts of the writer."""

    def __init__(self, progress: ConversionProgress):
        self._progress = progress
        self.object = "resources"

    def wrote(self, count: int) -> None:
        self._progress(self.object, count)


def _weight(parent: Parent, reporter: _Reporter) -> TensorToWrite:
    def produce() -> Iterator[np.ndarray]:
        reporter.object = parent.members[0].parameter.name
        return object_chunks(parent)

    return TensorToWrite(parent.id, parent.format, parent.shape, produce)


def _divisor(id: str, value: np.float32, reporter: _Reporter) -> TensorToWrite:
    def produce() -> bytes:
        reporter.object = id
        return np.asarray(value, "<f4").tobytes()

    return TensorToWrite(id, "fp32", (), produce)


def _provenance(
    source: Path,
    profile: str,
    base: Path | None,
    dflash2: Path | None,
    frequencies: Path | None,
) -> dict[str, Any]:
    given = {"source": source, "base": base, "dflash2": dflash2}
    facts: dict[str, Any] = {
        "converter": "ninfer_jax",
        "recipe": profile,
        "sources": {key: path.resolve().name for key, path in given.items() if path is not None},
    }
    if frequencies is not None:
        facts["ranking"] = hashlib.sha256(frequencies.read_bytes()).hexdigest()
    return facts


def _identity(inputs: Inputs, plan: Plan, frequencies: Path | None) -> str:
    """Text that changes when an input file does: what an interrupted conversion may build on."""
    files = {file for tensors in inputs.checkpoints for file in tensors.files}
    if frequencies is not None:
        files.add(frequencies)
    stamps = [[str(file.resolve()), *file_stamp(file)] for file in sorted(files)]
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in inputs.resources.items()}
    methods = [
        [member.parameter.name, member.dtype, str(member.tensors.path)]
        for parent in plan.parents
        for member in parent.members
    ]
    return json.dumps([stamps, digests, methods])
