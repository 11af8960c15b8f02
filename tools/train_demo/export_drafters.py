"""Adds the trained drafters and a proposal head to the demo artifact.

    python -m tools.train_demo.export_drafters --work checkpoints/demo

The text component keeps every word; drafters that an artifact already has are replaced.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ninfer_jax.artifact import (
    Artifact,
    Binding,
    Component,
    Part,
    Proposal,
    TensorObject,
    TensorToWrite,
    Use,
    open_artifact,
    pack_object,
    write_artifact,
)
from ninfer_jax.artifact.parameters import Parameter, config_parameters, parameter_format
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.checkpoint.from_huggingface.frequencies import proposal_tokens, special_tokens
from ninfer_jax.checkpoint.names import spec_parts
from ninfer_jax.checkpoint.to_artifact import encode
from ninfer_jax.model.config import text_config
from ninfer_jax.model.weights import MatrixSpec, Spec, is_spec
from tools.train_demo.data import batches
from tools.train_demo.drafters import DFLASH2, MTP, build_module
from tools.train_demo.export import DESTINATION
from tools.train_demo.train import load

PROPOSAL_ROWS = 512
"""Half of the vocabulary."""
CONFIGS: dict[str, dict[str, Any]] = {"mtp": MTP, "dflash2": DFLASH2}
CORPUS_BATCHES = 60
"""Training batches whose tokens are counted for the proposal head."""


@dataclasses.dataclass(frozen=True)
class Addition:
    """Objects to add, and the bindings to them."""

    tensors: list[TensorToWrite]
    bindings: dict[str, Binding]


def drafter_addition(specs: dict, arrays: dict, table: Mapping[str, Parameter]) -> Addition:
    """A drafter's weights: fused rows as the specs have them, stored once.

    The context projections are bound to the rows of the block's own.
    """
    tensors, bindings = [], {}
    leaves = jax.tree.leaves(specs, is_leaf=is_spec)
    for spec, array in zip(leaves, jax.tree.leaves(arrays), strict=True):
        names = [name for name, _ in spec_parts(spec)]
        if names[0].rpartition("/")[2].startswith("context_") and isinstance(spec, MatrixSpec):
            continue
        storage = parameter_format(table[names[0]], "nvfp4")
        object_id = f"weight/{names[0]}"
        payload = pack_object(storage, encode(np.asarray(array), storage), spec.shape)
        tensors.append(TensorToWrite(object_id, storage, spec.shape, payload))
        bindings |= _bindings(spec, object_id)
    for name in table:
        block, _, part = name.rpartition("/")
        own = f"{block}/{part.removeprefix('context_')}"
        if part in ("context_key", "context_value") and own in bindings:
            bindings[name] = bindings[own]
    return Addition(tensors, bindings)


def _bindings(spec: Spec, object_id: str) -> dict[str, Binding]:
    parts = spec_parts(spec)
    if len(parts) == 1:
        return {parts[0][0]: Binding(object=object_id)}
    bindings, begin = {}, 0
    for name, rows in parts:
        end = begin + rows * spec.columns
        bindings[name] = Binding(parts=(Part(object_id, begin, end),))
        begin = end
    return bindings


def token_counts(work: Path, public_tokens: int) -> np.ndarray:
    """How often the model is taught to write each token."""
    counts = np.zeros(public_tokens, np.int64)
    for batch in itertools.islice(batches(work, seed=77, tokens_per_batch=4096), CORPUS_BATCHES):
        learned = batch.tokens[batch.loss_mask > 0]
        counts += np.bincount(learned, minlength=public_tokens)[:public_tokens]
    return counts


def proposal_addition(artifact: Artifact, ids: np.ndarray) -> Addition:
    """Rows of the output head, word for word, and their tokens."""
    head = artifact.parameter("text/output_head")
    fields = head.words()
    rows = {name: np.ascontiguousarray(plane[ids]) for name, plane in fields.items()}
    shape = (len(ids), head.shape[1])
    words = {
        "proposal/head": TensorToWrite(
            "weight/proposal/head", head.format, shape, pack_object(head.format, rows, shape)
        ),
        "proposal/token_ids": TensorToWrite(
            "weight/proposal/token_ids",
            "int32",
            ids.shape,
            pack_object("int32", encode(ids, "int32"), ids.shape),
        ),
    }
    return Addition(
        list(words.values()), {name: Binding(object=tensor.id) for name, tensor in words.items()}
    )


def text_tensors(artifact: Artifact) -> Iterator[TensorToWrite]:
    """The text component's own objects, unchanged."""
    for stored in artifact.objects.values():
        if isinstance(stored, TensorObject) and not stored.id.startswith(
            ("weight/mtp/", "weight/dflash2/", "weight/proposal/")
        ):
            words = bytes(artifact.object_words(stored.id))
            yield TensorToWrite(stored.id, stored.format, stored.shape, words)


def write(artifact: Artifact, out: Path, work: Path) -> None:
    """Writes `artifact` with the drafters of a work folder."""
    public_tokens = check_artifact(artifact)
    text = artifact.components["text"]
    model = text_config(text.config, public_tokens)
    configs = {
        name: config for name, config in CONFIGS.items() if (work / f"{name}.pickle").exists()
    }
    table = {
        parameter.name: parameter
        for parameter in config_parameters({"text": text.config} | configs, PROPOSAL_ROWS, None)
    }
    resources = {
        identity: artifact.resource("text", role) for role, identity in text.resources.items()
    }
    by_role = {role: resources[identity] for role, identity in text.resources.items()}
    forced = special_tokens(by_role)
    additions, steps = [], {}
    for name in configs:
        run = load(work / f"{name}.pickle")
        steps[name] = run.step
        _, specs, _ = build_module(name, model)
        additions.append(drafter_addition(specs, run.params, table))
    ids = proposal_tokens(token_counts(work, public_tokens), forced, PROPOSAL_ROWS)
    additions.append(proposal_addition(artifact, ids))
    tensors = [*text_tensors(artifact), *(t for one in additions for t in one.tensors)]
    bindings = {name: b for name, b in artifact.bindings.items() if name.startswith("text/")}
    for one in additions:
        bindings |= one.bindings
    provenance = dict(artifact.provenance or {}) | {
        "drafters": "tools/train_demo/export_drafters.py",
        "drafter_steps": steps,
    }
    digest = hashlib.sha256(b"".join(bytes(tensor.data) for tensor in tensors)).digest()[:16]
    write_artifact(
        out,
        components={"text": dataclasses.replace(text, proposal=Proposal("indexed", PROPOSAL_ROWS))}
        | {name: Component(config, target="text") for name, config in configs.items()},
        tensors=tensors,
        resources=resources,
        bindings=bindings,
        uses=[
            Use(parameter.name, place, "A16Only")
            for parameter in table.values()
            for place in parameter.inputs
        ],
        metadata=artifact.metadata,
        provenance=provenance,
        artifact_id=digest,
    )


def check_text(before: Artifact, after: Artifact) -> None:
    """Raises `AssertionError` unless every word of the text component is the same."""
    for tensor in text_tensors(before):
        assert bytes(after.object_words(tensor.id)) == tensor.data, tensor.id


def main() -> None:
    """Replaces the artifact only after the new one is whole."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=Path("checkpoints/demo"))
    parser.add_argument("--artifact", type=Path, default=DESTINATION)
    parser.add_argument("--out", type=Path, default=DESTINATION)
    arguments = parser.parse_args()
    temporary = arguments.out.with_suffix(".new.ninfer")
    temporary.unlink(missing_ok=True)
    with open_artifact(arguments.artifact) as artifact:
        write(artifact, temporary, arguments.work)
        with open_artifact(temporary) as written:
            features = [name for name in CONFIGS if name in written.components]
            check_artifact(written, (*features, "proposal"))
            check_text(artifact, written)
    temporary.replace(arguments.out)
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
