"""The one description of every weight.

A module declares its weights as specs. The tree of specs, read off an abstractly built
module, gives everything else: the abstract tree for loading, random weights for tests and
training, the shardings, and the names in the artifact.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from ninfer_jax.quantization.weights import DenseWeight

Initial = Literal["fan_in", "zeros", "ones", "decay", "time_step", "unit", "codebook", "first_tap"]


@dataclasses.dataclass(frozen=True)
class MatrixSpec:
    """A linear map made of named row blocks with one input.

    Attributes:
      names: artifact parameters stacked along the rows, in order.
      rows: rows of each.
      columns: input width.
      axes: logical axes of (rows, columns), for sharding: "heads", "mlp", "vocabulary",
        "model_width" or None.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    axes: tuple[str | None, str | None]
    initial: Initial = "fan_in"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K) of the stacked matrix."""
        return sum(self.rows), self.columns


@dataclasses.dataclass(frozen=True)
class VectorSpec:
    """A small parameter: a norm weight, a convolution, a decay.

    Attributes:
      name: artifact parameter.
      shape: its shape.
      initial: random form for tests and training.
      full_precision: kept in f32 whatever the compute type (`a_log`, `dt_bias`).
    """

    name: str
    shape: tuple[int, ...]
    initial: Initial = "zeros"
    full_precision: bool = False


Spec = MatrixSpec | VectorSpec


def spec_tree(module: nnx.Module) -> dict:
    """The nested dict of specs of an abstractly built module."""
    return nnx.to_pure_dict(nnx.state(module))


def is_spec(node: object) -> bool:
    """True for a leaf of a spec tree."""
    return isinstance(node, (MatrixSpec, VectorSpec))


def initial_array(spec: Spec, key: jax.Array) -> jax.Array:
    """A random f32 array for a spec, as training starts from it."""
    match spec.initial:
        case "fan_in":
            fan_in = spec.shape[-1] if isinstance(spec, MatrixSpec) else spec.shape[0]
            return jax.random.normal(key, spec.shape, jnp.float32) / math.sqrt(fan_in)
        case "unit":
            return jax.random.normal(key, spec.shape, jnp.float32)
        case "codebook":
            return 0.1 * jax.random.normal(key, spec.shape, jnp.float32)
        case "first_tap":
            # [sides, taps, D]: the identity.
            return jnp.zeros(spec.shape, jnp.float32).at[:, 0].set(1.0)
        case "ones":
            return jnp.ones(spec.shape, jnp.float32)
        case "decay":
            # Decays from slow (half-life of hundreds of tokens) to fast, one per head.
            return jnp.log(jax.random.uniform(key, spec.shape, jnp.float32, 0.5, 8.0))
        case "time_step":
            low, high = math.log(1e-3), math.log(1e-1)
            step = jnp.exp(jax.random.uniform(key, spec.shape, jnp.float32, low, high))
            return step + jnp.log(-jnp.expm1(-step))
        case _:
            return jnp.zeros(spec.shape, jnp.float32)


def initial_arrays(module: nnx.Module, seed: int) -> dict:
    """Random f32 arrays for all weights of a module, one array per spec."""
    specs = spec_tree(module)
    leaves, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(
        treedef, [initial_array(spec, key) for spec, key in zip(leaves, keys, strict=True)]
    )


def as_weights(specs: dict, arrays: dict, dtype: jnp.dtype) -> dict:
    """Turns one array per spec into the weight objects the modules compute with."""

    def convert(spec: Spec, array: jax.Array):
        if isinstance(spec, MatrixSpec):
            return (DenseWeight(array.astype(dtype)),)
        return array.astype(jnp.float32 if spec.full_precision else dtype)

    return jax.tree.map(convert, specs, arrays, is_leaf=is_spec)
