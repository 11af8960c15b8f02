"""The directory that the version 3 converter writes for a model: order, ids, fusion, uses.

Readers never depend on this order; writers follow it, and planners read sizes from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from ninfer_jax.artifact.codecs import encoded_bytes
from ninfer_jax.artifact.directory import (
    INPUT_DIVISOR,
    Binding,
    Directory,
    FileEntry,
    Part,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
)
from ninfer_jax.artifact.formats import FORMATS, NVFP4, TENSOR_ALIGNMENT
from ninfer_jax.artifact.geometry import GEOMETRIES, QWEN_27B, Geometry
from ninfer_jax.artifact.legacy import activation_policy, published_components
from ninfer_jax.artifact.legacy_names import resource_owner
from ninfer_jax.artifact.parameters import (
    COMPONENTS,
    Parameter,
    model_parameters,
    parameter_format,
)

NATIVE_TEMPLATE_BYTES = 9712
"""Size of the chat template in the published version 3 files."""

# Kind of a block -> its candidate groups, in the order in which they are tried.
_GROUPS = {
    "gated attention": ("query key gate value", "query key", "gate value"),
    "attention": ("query key value", "query_bias key_bias value_bias"),
    "gdn": ("query key value z", "query key", "value z", "a_projection b_projection"),
    "mlp": ("gate up",),
}


def candidate_groups(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the parameters that may share a parent, in the order in which parents are formed.

    `names` are the parameters of a model in native order.
    """
    blocks: dict[str, set[str]] = {}
    for name in names:
        block, _, leaf = name.rpartition("/")
        blocks.setdefault(block, set()).add(leaf)
    for block, leaves in blocks.items():
        kind = block.rpartition("/")[2]
        if kind == "attention" and "gate" in leaves:
            kind = "gated attention"
        for group in _GROUPS.get(kind, ()):
            members = group.split()
            if leaves.issuperset(members):
                yield tuple(f"{block}/{member}" for member in members)


def native_parents(
    profile: str, components: tuple[str, ...] = COMPONENTS, geometry: Geometry = QWEN_27B
) -> list[tuple[Parameter, ...]]:
    """Return the parents `weight/000000`, ... in order, each as the parameters whose rows it holds.

    Members of a parent have one format; see `parent_names`.
    """
    parameters = {parameter.name: parameter for parameter in model_parameters(components, geometry)}
    parents = parent_names(
        parameters, profile, lambda name: parameter_format(parameters[name], profile)
    )
    return [tuple(parameters[name] for name in names) for names in parents]


def parent_names(
    names: Collection[str], profile: str, storage: Callable[[str], Hashable]
) -> list[tuple[str, ...]]:
    """Return the names whose rows each parent holds, in the order of parents.

    A candidate group becomes a parent when no member is placed yet and all have one `storage`; the
    A and B projections stay separate in `groupwise-int`. What is left follows alone. DFlash2
    context keys and values are shares of `key` and `value` and have no parent.
    """
    placed: set[str] = set()
    parents: list[tuple[str, ...]] = []
    for members in candidate_groups(names):
        if profile == "groupwise-int" and members[0].endswith("/a_projection"):
            continue
        if len({storage(name) for name in members}) == 1 and placed.isdisjoint(members):
            parents.append(members)
            placed.update(members)
    parents += [
        (name,) for name in names if name not in placed and "/attention/context_" not in name
    ]
    return parents


def native_directory(
    profile: str,
    resources: Mapping[str, int],
    components: tuple[str, ...] = COMPONENTS,
    model_id: str = "qwen3.8-27b",
    geometry: Geometry | None = None,
) -> Directory:
    """Return the directory of a natively written file; `resources` is file name -> bytes.

    `geometry` is that of `model_id` when None.
    """
    geometry = geometry or GEOMETRIES[model_id]
    objects: dict[str, StoredObject] = {}
    roles: dict[str, dict[str, str]] = {"text": {}, "vision": {}}
    cursor = 0
    for file_name, size in resources.items():
        owner = resource_owner(file_name)
        id = f"resource/{owner}/{file_name}"
        objects[id] = ResourceObject(id, cursor, size)
        roles[owner][file_name] = id
        cursor += size
    bindings: dict[str, Binding] = {}
    for index, members in enumerate(native_parents(profile, components, geometry)):
        format = parameter_format(members[0], profile, model_id)
        shape = members[0].shape
        if len(members) > 1:
            shape = (sum(member.shape[0] for member in members), *shape[1:])
        stored = _tensor(f"weight/{index:06d}", format, shape, cursor)
        objects[stored.id] = stored
        cursor = stored.offset + stored.bytes
        bindings |= bind_members(stored.id, members)
    uses = []
    parameters = model_parameters(components, geometry)
    for parameter in parameters:
        format = parameter_format(parameter, profile, model_id)
        for name in parameter.inputs:
            auxiliaries = {}
            if format == NVFP4:
                divisors = sum(1 for use in uses if use.auxiliaries)
                stored = _tensor(f"auxiliary/{divisors:06d}", "fp32", (), cursor)
                objects[stored.id] = stored
                cursor = stored.offset + stored.bytes
                auxiliaries[INPUT_DIVISOR] = Binding(object=stored.id)
            uses.append(Use(parameter.name, name, activation_policy(format), auxiliaries))
    described = published_components(roles, "dflash2" in components, geometry)
    if "proposal" not in components:
        described["text"] = replace(described["text"], proposal=None)
    return Directory(
        components={name: part for name, part in described.items() if name in components},
        objects=objects,
        bindings={parameter.name: bindings[parameter.name] for parameter in parameters},
        uses=tuple(uses),
        files=(FileEntry(None, cursor),),
        metadata={"name": model_id},
        provenance={},
    )


def _tensor(id: str, format: str, shape: tuple[int, ...], cursor: int) -> TensorObject:
    offset = -(-cursor // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
    return TensorObject(
        id, shape, format, FORMATS[format].layout, offset, encoded_bytes(format, shape)
    )


def bind_members(id: str, members: tuple[Parameter, ...]) -> dict[str, Binding]:
    """Bind the members of the parent object `id`, and the DFlash2 context rows in it."""
    if len(members) == 1:
        return {members[0].name: Binding(object=id)}
    bindings: dict[str, Binding] = {}
    begin = 0
    for member in members:
        end = begin + math.prod(member.shape)
        bindings[member.name] = Binding(parts=(Part(id, begin, end),))
        block, _, leaf = member.name.rpartition("/")
        if block.startswith("dflash2/") and leaf in ("key", "value"):
            bindings[f"{block}/context_{leaf}"] = bindings[member.name]
        begin = end
    return bindings
