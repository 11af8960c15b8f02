"""Text parameters by name: their shapes, and the way between names and the tree of specs.

No JAX here: exports and oracles know weights by name only. The names are those of
`docs/artifact.md` section 6; that they and their shapes are the ones the model's specs
declare is a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ninfer_jax.model.config import TextConfig

if TYPE_CHECKING:
    from ninfer_jax.model.weights import Spec

Parameters = Mapping[str, np.ndarray]
"""Parameter name -> f32 values in the shape of `parameter_shapes`."""


def parameter_shapes(config: TextConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every text parameter, in layer order."""
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {"text/token_embedding": table}
    for index, kind in enumerate(config.layer_types):
        layer = f"text/layers/{index}"
        shapes[f"{layer}/input_norm"] = (config.hidden_size,)
        mixer = _attention if kind == "full_attention" else _gated_deltanet
        block = "attention" if kind == "full_attention" else "gdn"
        shapes |= {f"{layer}/{block}/{name}": shape for name, shape in mixer(config).items()}
        shapes[f"{layer}/post_attention_norm"] = (config.hidden_size,)
        for name in ("gate", "up"):
            shapes[f"{layer}/mlp/{name}"] = (config.intermediate_size, config.hidden_size)
        shapes[f"{layer}/mlp/down"] = (config.hidden_size, config.intermediate_size)
    shapes["text/final_norm"] = (config.hidden_size,)
    shapes["text/output_head"] = table
    return shapes


def _attention(config: TextConfig) -> dict[str, tuple[int, ...]]:
    width = config.hidden_size
    return {
        "query": (config.query_width, width),
        "key": (config.key_value_width, width),
        "gate": (config.query_width, width),
        "value": (config.key_value_width, width),
        "query_norm": (config.head_dim,),
        "key_norm": (config.head_dim,),
        "output": (width, config.query_width),
    }


def _gated_deltanet(config: TextConfig) -> dict[str, tuple[int, ...]]:
    width, heads = config.hidden_size, config.linear_num_value_heads
    return {
        "query": (config.linear_key_width, width),
        "key": (config.linear_key_width, width),
        "value": (config.linear_value_width, width),
        "z": (config.linear_value_width, width),
        "a_projection": (heads, width),
        "b_projection": (heads, width),
        "convolution": (config.linear_conv_kernel_dim, config.convolution_width),
        "a_log": (heads,),
        "dt_bias": (heads,),
        "norm": (config.linear_value_head_dim,),
        "output": (width, config.linear_value_width),
    }


def spec_parts(spec: Spec) -> list[tuple[str, int | None]]:
    """(parameter, rows) of each row block of a spec; rows None for the whole array."""
    names = getattr(spec, "names", None)
    if names is None:
        return [(spec.name, None)]
    return list(zip(names, spec.rows, strict=True))


def arrays_by_spec(specs: Mapping, parameters: Parameters) -> dict:
    """The tree of f32 arrays, one per spec, from named parameters: row blocks are stacked."""

    def gather(node):
        if isinstance(node, Mapping):
            return {key: gather(child) for key, child in node.items()}
        return np.concatenate([parameters[name] for name, _ in spec_parts(node)])

    return gather(specs)


def named_parameters(specs: Mapping, arrays: Mapping) -> dict[str, np.ndarray]:
    """The inverse of `arrays_by_spec`; also for trained arrays."""
    parameters: dict[str, np.ndarray] = {}

    def split(node, array) -> None:
        if isinstance(node, Mapping):
            for key, child in node.items():
                split(child, array[key])
            return
        values, begin = np.asarray(array, np.float32), 0
        for name, rows in spec_parts(node):
            end = len(values) if rows is None else begin + rows
            parameters[name] = values[begin:end]
            begin = end

    split(specs, arrays)
    return parameters
