"""How each parameter is taken from its tensor: words as they are, or values encoded here.

Recipe `nvfp4` imports the NVFP4 and FP8 words of a compressed-tensors checkpoint verbatim and
encodes whatever is not quantised yet; `groupwise-int` encodes everything. Both import the words of
grouped integers, which only an export of an artifact has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ninfer_jax.artifact.block_scale import TILE_COLUMNS, TILE_ROWS
from ninfer_jax.artifact.formats import DIRECT_FORMATS, FP8, NVFP4
from ninfer_jax.artifact.grouped import GROUPED, groups_per_row
from ninfer_jax.artifact.nvfp4 import BLOCK
from ninfer_jax.artifact.parameters import Parameter, parameter_format
from ninfer_jax.checkpoint.packed_integers import packed_columns
from ninfer_jax.checkpoint.safetensors import Safetensors
from ninfer_jax.checkpoint.tensor_names import ChosenRows, Location
from ninfer_jax.errors import ArtifactError

FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True)
class Planned:
    """A parameter, where it comes from, and in which format it is stored.

    Attributes:
      imported: whether the quantised words of the source are taken verbatim.
      dtype: type of the source tensor.
      divisor: of imported NVFP4 words; encoded ones get theirs from the whole parent.
      input_divisor: of the NVFP4 activation operand, where the source has calibrated it.
      words: the words themselves, of a parameter that no tensor holds.
    """

    parameter: Parameter
    tensors: Safetensors
    location: Location
    format: str
    dtype: str
    imported: bool = False
    divisor: np.float32 | None = None
    input_divisor: np.float32 | None = None
    words: np.ndarray | None = None

    @property
    def module(self) -> str:
        """Name of the tensor without `.weight`: quantised words hang below it."""
        return self.location.tensor.removesuffix(".weight")

    @property
    def has_chosen_rows(self) -> bool:
        """Whether it is made of single rows of the tensor: quantised words cannot be taken."""
        return isinstance(self.location.rows, ChosenRows)


def plan_parameter(
    parameter: Parameter, tensors: Safetensors, location: Location, profile: str
) -> Planned:
    """Decide how a parameter is stored; `ArtifactError` names the tensor that does not fit."""
    format = parameter_format(parameter, profile)
    planned = Planned(parameter, tensors, location, format, "")
    if format in DIRECT_FORMATS:
        entry = tensors.entry(location.tensor, FLOATS, [location.shape])
        return replace(planned, dtype=entry.dtype)
    packed = tensors.entries.get(f"{planned.module}.weight_packed")
    if packed is not None and packed.dtype == "I32":
        return _grouped(planned)
    if packed is not None:
        return _nvfp4(_words_wanted(planned, profile))
    entry = tensors.entry(location.tensor, (*FLOATS, "F8_E4M3"), [location.shape])
    if entry.dtype == "F8_E4M3":
        return _fp8(_words_wanted(planned, profile))
    if format == NVFP4 and (parameter.shape[0] % TILE_ROWS or parameter.shape[1] % TILE_COLUMNS):
        # A matrix that NVFP4 tiles do not divide keeps 8 bits.
        format = FP8
    return replace(planned, format=format, dtype=entry.dtype)


def _words_wanted(planned: Planned, profile: str) -> Planned:
    if profile != "nvfp4" or planned.has_chosen_rows:
        raise _quantised_already(planned)
    if planned.location.axes != "as stored":
        raise ArtifactError(
            f"{planned.tensors.path}: {planned.module!r} is quantised, expected BF16: its axes are "
            "rearranged"
        )
    return planned


def _quantised_already(planned: Planned) -> ArtifactError:
    return ArtifactError(
        f"{planned.tensors.path}: {planned.module!r} is quantised already, but "
        f"{planned.parameter.name} is encoded as {planned.format}, which needs BF16 weights; give "
        "the BF16 checkpoint as base"
    )


def _grouped(planned: Planned) -> Planned:
    """Words of the one format that their shapes fit, the requested one first."""
    if planned.has_chosen_rows:
        raise _quantised_already(planned)
    rows, columns = planned.location.shape[0], math.prod(planned.location.shape[1:])
    tensors, module = planned.tensors, planned.module
    found = tensors.entries[f"{module}.weight_packed"].shape
    requested = planned.format if planned.format in GROUPED else "q4_g64_fp16"
    for format in (requested, *GROUPED):
        scales = tensors.entries.get(f"{module}.weight_scale")
        shapes = (rows, packed_columns(format, columns)), (rows, groups_per_row(format, columns))
        if scales is not None and (found, scales.shape) == shapes:
            requested = format
            break
    tensors.entry(f"{module}.weight_packed", ("I32",), [(rows, packed_columns(requested, columns))])
    tensors.entry(f"{module}.weight_scale", ("F16",), [(rows, groups_per_row(requested, columns))])
    return replace(planned, format=requested, dtype="I32", imported=True)


def _nvfp4(planned: Planned) -> Planned:
    rows, columns = planned.location.shape
    tensors, module = planned.tensors, planned.module
    tensors.entry(f"{module}.weight_packed", ("U8",), [(rows, columns // 2)])
    tensors.entry(f"{module}.weight_scale", ("F8_E4M3",), [(rows, columns // BLOCK)])
    divisor = _positive(tensors, f"{module}.weight_global_scale")
    calibrated = f"{module}.input_global_scale"
    return replace(
        planned,
        format=NVFP4,
        dtype="U8",
        imported=True,
        divisor=divisor,
        input_divisor=_positive(tensors, calibrated) if calibrated in tensors else None,
    )


def _positive(tensors: Safetensors, name: str) -> np.float32:
    tensors.entry(name, ("F32",), [(1,), ()])
    value = np.float32(tensors.words(name).reshape(()))
    if not (np.isfinite(value) and value > 0):
        raise ArtifactError(
            f"{tensors.path}: tensor {name!r} is {value}, expected a finite divisor above 0"
        )
    return value


def _fp8(planned: Planned) -> Planned:
    rows = planned.location.shape[0]
    planned.tensors.entry(f"{planned.module}.weight_scale", ("BF16",), [(rows,), (rows, 1)])
    return replace(planned, format=FP8, dtype="F8_E4M3", imported=True)
