"""From planned parameters to objects, bindings and uses, in the order of a native file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ninfer_jax.artifact.directory import INPUT_DIVISOR, Binding, Use
from ninfer_jax.artifact.formats import GROUPED_FORMATS, NVFP4
from ninfer_jax.artifact.legacy import activation_policy
from ninfer_jax.artifact.native import bind_members, parent_names
from ninfer_jax.checkpoint.from_huggingface.payload import Parent
from ninfer_jax.checkpoint.from_huggingface.recipe import Planned


@dataclass(frozen=True)
class Plan:
    """What will be written.

    Attributes:
      parents: `weight/000000`, ... in order.
      divisors: `auxiliary/000000`, ... -> input divisor.
      bindings, uses: as in a directory.
    """

    parents: tuple[Parent, ...]
    divisors: dict[str, np.float32]
    bindings: dict[str, Binding]
    uses: tuple[Use, ...]


def plan_objects(planned: Mapping[str, Planned], profile: str) -> Plan:
    """Fuse, number and bind parameters; `planned` is in native order."""
    parents = tuple(
        Parent(f"weight/{index:06d}", members)
        for index, members in enumerate(fused_members(planned, profile))
    )
    bindings: dict[str, Binding] = {}
    for parent in parents:
        bindings |= bind_members(parent.id, tuple(member.parameter for member in parent.members))
    divisors: dict[str, np.float32] = {}
    uses = []
    for member in planned.values():
        for input in member.parameter.inputs:
            auxiliaries = {}
            if member.input_divisor is not None:
                id = f"auxiliary/{len(divisors):06d}"
                divisors[id] = member.input_divisor
                auxiliaries[INPUT_DIVISOR] = Binding(object=id)
            uses.append(Use(member.parameter.name, input, use_policy(member), auxiliaries))
    return Plan(parents, divisors, {name: bindings[name] for name in planned}, tuple(uses))


def use_policy(member: Planned) -> str:
    """The permission of a use: without a calibrated input divisor NVFP4 stays at 16 bits."""
    if member.format == NVFP4 and member.input_divisor is None:
        return "A16Only"
    return activation_policy(member.format)


def fused_members(planned: Mapping[str, Planned], profile: str) -> list[tuple[Planned, ...]]:
    """The members of each parent, in the order of parents.

    Members of a parent have one format and, unless they are grouped integers, one method; imported
    NVFP4 words need bit-identical divisors.
    """
    parents = parent_names(planned, profile, lambda name: _method(planned[name]))
    return [tuple(planned[name] for name in names) for names in parents]


def _method(member: Planned) -> tuple[str, bool, bytes]:
    divisor = b"" if member.divisor is None else member.divisor.tobytes()
    return member.format, member.imported and member.format not in GROUPED_FORMATS, divisor
