"""Opens the checkpoints of a conversion and finds every parameter in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.artifact.config_rules import check_dflash2_config
from ninfer_jax.artifact.parameters import Parameter, config_parameters
from ninfer_jax.artifact.requirements import check_proposal_ids
from ninfer_jax.artifact.token_ids import check_token_ids
from ninfer_jax.checkpoint.from_huggingface.frequencies import (
    proposal_tokens,
    special_tokens,
    token_counts,
)
from ninfer_jax.checkpoint.from_huggingface.recipe import Planned, plan_parameter
from ninfer_jax.checkpoint.from_huggingface.resources import check_patches, read_resources
from ninfer_jax.checkpoint.from_huggingface.source_config import (
    SourceConfig,
    dflash2_component,
    mtp_component,
)
from ninfer_jax.checkpoint.safetensors import Safetensors
from ninfer_jax.checkpoint.tensor_names import (
    PROPOSAL_TENSORS,
    ChosenRows,
    Location,
    locate,
    text_prefix,
)
from ninfer_jax.errors import ArtifactError

_MARKS = {"mtp": "mtp.", "vision": "model.visual."}
"""Component -> prefix that all its tensors have."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory of the target model: its config and its tensors."""

    config: SourceConfig
    tensors: Safetensors

    def has(self, component: str) -> bool:
        """Whether any tensor of `mtp` or `vision` is there."""
        return any(name.startswith(_MARKS[component]) for name in self.tensors.entries)


@dataclass(frozen=True)
class Inputs:
    """Everything a conversion reads.

    Attributes:
      configs: component -> its config, of the components that will exist.
      planned: every parameter, in native order.
      resources: file name -> content.
      proposal_rows: rows of the proposal head, or None without one.
      checkpoints: all opened tensors.
    """

    configs: dict[str, dict[str, Any]]
    planned: dict[str, Planned]
    resources: dict[str, bytes]
    proposal_rows: int | None
    checkpoints: tuple[Safetensors, ...]


def open_inputs(
    source: Path,
    profile: str,
    base: Path | None,
    dflash2: Path | None,
    frequencies: Path | None,
) -> Inputs:
    """Open and check all inputs; see `convert_checkpoint` for the arguments and errors."""
    quantised = _open(source)
    extras = quantised if base is None else _open(base)
    # What a quantised checkpoint lacks comes from the base; integers are made of nothing else.
    text = extras if profile == "groupwise-int" else quantised
    configs = {"text": text.config.text_component()}
    _require_same(configs["text"], extras, quantised)
    for component in ("mtp", "vision"):
        if _is_present(component, extras):
            configs[component] = (
                mtp_component() if component == "mtp" else extras.config.vision_component()
            )
    resources = read_resources(extras.config.path.parent, configs)
    if "vision" in configs:
        check_patches(resources, configs["vision"])
    public_tokens = check_token_ids(
        resources["tokenizer.json"],
        resources["tokenizer_config.json"],
        configs["text"]["vocab_size"],
    )
    head = _proposal(quantised, extras, configs["text"], resources, public_tokens, frequencies)
    rows = None if head is None else len(head.token_ids)
    checkpoints = [quantised.tensors, extras.tensors]
    if dflash2 is not None:
        configs["dflash2"] = dflash2_component(dflash2, configs["text"])
        try:
            check_dflash2_config(configs["dflash2"], configs["text"], rows or public_tokens)
        except ArtifactError as error:
            raise ArtifactError(f"{dflash2}: {error.message}") from None
        checkpoints.append(Safetensors(dflash2))
    planned = {}
    parameters = config_parameters(configs, rows)
    for parameter in parameters:
        if parameter.component == "proposal":
            planned[parameter.name] = head.planned(parameter, profile)
            continue
        if parameter.component == "dflash2":
            tensors, prefix = checkpoints[-1], ""
        else:
            owner = text
            if parameter.component != "text" or parameter.name == "text/token_embedding":
                owner = extras
            tensors, prefix = owner.tensors, text_prefix(owner.config.nested)
        location = locate(parameter, configs, prefix)
        if parameter.name == "text/output_head":
            location = _head_location(text, location)
        planned[parameter.name] = plan_parameter(parameter, tensors, location, profile)
    return Inputs(configs, planned, resources, rows, tuple(checkpoints))


def _open(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: no directory; expected a checkpoint with config.json")
    return Checkpoint(SourceConfig(folder), Safetensors(folder))


def _require_same(config: dict[str, Any], extras: Checkpoint, quantised: Checkpoint) -> None:
    """Raise unless base and source describe one text model."""
    for checkpoint in (extras, quantised):
        for key, value in checkpoint.config.text_component().items():
            if config[key] != value:
                raise ArtifactError(
                    f"{checkpoint.config.path}: {key} is {str(value)[:80]}, but "
                    f"{str(config[key])[:80]} in the other checkpoint; base and source must be "
                    "one model"
                )


def _is_present(component: str, extras: Checkpoint) -> bool:
    promise = extras.config.promises.get(component)
    if extras.has(component):
        return True
    if promise is not None:
        raise ArtifactError(
            f"{extras.config.path}: {promise} promises component {component!r}, but there is no "
            f"tensor {_MARKS[component]}*; give a base checkpoint that has it, or remove {promise}"
        )
    return False


def _head_location(owner: Checkpoint, location: Location) -> Location:
    """The output head, or the embedding that stands for it when the source ties them."""
    if not owner.config.ties_embeddings:
        return location
    prefix = text_prefix(owner.config.nested)
    return Location(f"{prefix}embed_tokens.weight", location.shape)


@dataclass(frozen=True)
class _ProposalHead:
    """Tokens of the proposal head, and where its rows come from."""

    token_ids: np.ndarray
    tensors: Safetensors
    location: Location

    def planned(self, parameter: Parameter, profile: str) -> Planned:
        if parameter.name == "proposal/head":
            return plan_parameter(parameter, self.tensors, self.location, profile)
        words = self.token_ids.astype(np.int32)
        return Planned(parameter, self.tensors, self.location, "int32", "I32", words=words)


def _proposal(
    source: Checkpoint,
    extras: Checkpoint,
    text: dict[str, Any],
    resources: dict[str, bytes],
    public_tokens: int,
    frequencies: Path | None,
) -> _ProposalHead | None:
    """The head made for given frequencies, or the one that an export carries, or none."""
    width = text["hidden_size"]
    if frequencies is not None:
        counts = token_counts(frequencies, text["vocab_size"], public_tokens)
        token_ids = proposal_tokens(counts, special_tokens(resources))
        full = Location("lm_head.weight", (text["vocab_size"], width))
        location = _head_location(extras, full)
        chosen = Location(location.tensor, location.shape, ChosenRows(token_ids))
        return _ProposalHead(token_ids, extras.tensors, chosen)
    head, ids = PROPOSAL_TENSORS
    if ids not in source.tensors:
        return None
    rows = len(source.tensors.words(ids).reshape(-1))
    source.tensors.entry(ids, ("I32",), [(rows,)])
    token_ids = source.tensors.words(ids)
    check_proposal_ids(token_ids, public_tokens)
    return _ProposalHead(token_ids, source.tensors, Location(head, (rows, width)))
