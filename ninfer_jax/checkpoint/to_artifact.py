"""Writes decoder weights as a `.ninfer` v3 artifact.

Walks the tree of weight specs: every spec becomes one tensor object (row blocks with one
input are stored fused), each named parameter a binding to its rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ninfer_jax.artifact import (
    Binding,
    Component,
    Part,
    TensorToWrite,
    Use,
    encode_direct,
    encode_fp8_rows,
    encode_grouped,
    encode_nvfp4,
    pack_object,
    write_artifact,
)
from ninfer_jax.model.weights import MatrixSpec, Spec, is_spec

INPUTS = {
    "query": "mixer_input",
    "key": "mixer_input",
    "gate": "mixer_input",
    "value": "mixer_input",
    "z": "mixer_input",
    "a_projection": "mixer_input",
    "b_projection": "mixer_input",
}
"""Input of a mixer projection inside its block; see `projection_input` for the others."""


def projection_input(parameter: str) -> str | None:
    """Name of the mathematical input of a text projection (`docs/artifact.md` 4.8).

    None for parameters that are no projection (embedding, norms, convolution).
    """
    if parameter == "text/output_head":
        return "text/final_hidden"
    block, _, tail = parameter.rpartition("/")
    owner, _, mixer = block.rpartition("/")
    if mixer == "mlp":
        return f"{owner}/mlp/product" if tail == "down" else f"{owner}/ffn_input"
    if mixer in ("attention", "gdn"):
        if tail == "output":
            return f"{owner}/{mixer}/gated_output"
        if tail in INPUTS:
            return f"{owner}/{INPUTS[tail]}"
    return None


def encode(values: np.ndarray, storage: str) -> dict[str, np.ndarray]:
    """Fields of an array in a v3 format, by the reference encoders."""
    # Not ascontiguousarray, which makes a vector of a scalar.
    values = np.asarray(values, np.float32, order="C")
    if storage == "fp8_e4m3fn_row_bf16":
        return dict(zip(("codes", "scales"), encode_fp8_rows(values), strict=True))
    if storage == "nvfp4":
        return dict(zip(("codes", "scales", "divisor"), encode_nvfp4(values), strict=True))
    if storage.startswith("q"):
        return dict(zip(("codes", "scales"), encode_grouped(values, storage), strict=True))
    return encode_direct(storage, values)


def _bindings(spec: Spec, object_id: str) -> dict[str, Binding]:
    if not isinstance(spec, MatrixSpec):
        return {spec.name: Binding(object=object_id)}
    if len(spec.names) == 1:
        return {spec.names[0]: Binding(object=object_id)}
    bindings, begin = {}, 0
    for name, rows in zip(spec.names, spec.rows, strict=True):
        end = begin + rows * spec.columns
        bindings[name] = Binding(parts=(Part(object_id, begin, end),))
        begin = end
    return bindings


def write_decoder(
    path: Path,
    specs: dict,
    arrays: dict,
    *,
    config: Mapping[str, Any],
    resources: Mapping[str, bytes],
    storage_format: Callable[[str], str],
    name: str,
    provenance: Mapping[str, Any],
    artifact_id: bytes | None = None,
) -> list[Path]:
    """Encodes f32 arrays, one per spec, and writes the artifact.

    Args:
      path: file to write; must not exist.
      specs, arrays: trees of one structure.
      config: `components.text.config`.
      resources: text resources by role (`tokenizer.json`, ...).
      storage_format: parameter name -> v3 format.
      name: public model name.
      provenance: where the weights come from.
      artifact_id: 16 bytes; random if None.

    Raises:
      ArtifactError: the file exists, or a value cannot be represented.
    """
    leaves = jax.tree.leaves(specs, is_leaf=is_spec)
    values = jax.tree.leaves(arrays)
    tensors, bindings, uses = [], {}, []
    for index, (spec, array) in enumerate(zip(leaves, values, strict=True)):
        names = spec.names if isinstance(spec, MatrixSpec) else (spec.name,)
        storage = storage_format(names[0])
        fields = encode(np.asarray(array), storage)
        object_id = f"weight/{index:06d}"
        payload = pack_object(storage, fields, spec.shape)
        tensors.append(TensorToWrite(object_id, storage, spec.shape, payload))
        bindings |= _bindings(spec, object_id)
        for parameter in names:
            place = projection_input(parameter)
            if place is not None:
                uses.append(Use(parameter, place, "A16Only"))
    ids = {role: f"resource/text/{role}" for role in resources}
    return write_artifact(
        path,
        components={"text": Component(dict(config), resources=ids)},
        tensors=tensors,
        resources={ids[role]: data for role, data in resources.items()},
        bindings=bindings,
        uses=uses,
        metadata={"name": name},
        provenance=dict(provenance),
        artifact_id=artifact_id,
    )
