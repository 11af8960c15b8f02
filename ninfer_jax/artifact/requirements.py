"""What a consumer may demand of an artifact before it reads weights.

Features are the optional parts a caller asks for; text is always needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from ninfer_jax.artifact.bindings import StoredTensor
from ninfer_jax.artifact.config_rules import (
    check_dflash2_config,
    check_mtp_config,
    check_text_config,
    check_vision_config,
)
from ninfer_jax.artifact.directory import INPUT_DIVISOR, Use
from ninfer_jax.artifact.formats import FORMATS
from ninfer_jax.artifact.legacy_names import TEXT_RESOURCES, VISION_RESOURCES
from ninfer_jax.artifact.parameters import model_parameters
from ninfer_jax.artifact.reader import Artifact
from ninfer_jax.artifact.records import Record
from ninfer_jax.artifact.strict_json import parse_json
from ninfer_jax.artifact.token_ids import check_token_ids
from ninfer_jax.errors import ArtifactError

FEATURES = ("vision", "mtp", "dflash2", "proposal")


def check_artifact(artifact: Artifact, features: Collection[str] = ()) -> int:
    """Check features, configs, resources, parameters and uses; return the public token count V.

    Everything a directory and small objects can tell is checked; weights are not read. Raises
    `ArtifactError` at the first fault.
    """
    check_features(artifact, features)
    check_resources(artifact, features)
    public_tokens = check_token_ids(
        artifact.resource("text", "tokenizer.json"),
        artifact.resource("text", "tokenizer_config.json"),
        _vocabulary(artifact),
    )
    check_configs(artifact, features, public_tokens)
    needed = set()
    # A config may claim any number of layers: stop at the first name that is not bound.
    for name in required_parameters(artifact, features):
        require_format(artifact.parameter(name), FORMATS)
        needed.add(name)
    for use in artifact.uses:
        if use.parameter in needed:
            check_auxiliaries(use)
            if INPUT_DIVISOR in use.auxiliaries:
                input_divisor(artifact, use)
    if "proposal" in features:
        check_proposal(artifact, public_tokens)
    return public_tokens


def check_features(artifact: Artifact, features: Collection[str]) -> None:
    """Raise `ArtifactError` unless the artifact provides every requested feature."""
    for feature in features:
        if feature not in FEATURES:
            raise ValueError(f"unknown feature {feature!r}, expected one of {', '.join(FEATURES)}")
        if feature == "proposal":
            if artifact.components["text"].proposal is None:
                raise ArtifactError(
                    f"{artifact.path.name}: artifact has no proposal head but proposal "
                    "was requested"
                )
        elif feature not in artifact.components:
            raise ArtifactError(
                f"{artifact.path.name}: artifact has no {feature} component but {feature} "
                "was requested"
            )


def check_configs(artifact: Artifact, features: Collection[str], public_tokens: int) -> None:
    """Check the configs of text and of the requested components."""
    text = artifact.components["text"]
    check_text_config(text.config)
    if "vision" in features:
        check_vision_config(artifact.components["vision"].config)
    if "mtp" in features:
        check_mtp_config(artifact.components["mtp"].config)
    if "dflash2" in features:
        rows = text.proposal.rows if text.proposal is not None else None
        check_dflash2_config(
            artifact.components["dflash2"].config, text.config, rows or public_tokens
        )


def check_resources(artifact: Artifact, features: Collection[str]) -> None:
    """Check that the resources are there and readable, and the vision geometry agrees.

    Text resources are UTF-8, `.json` ones are JSON objects. The two preprocessors must name the
    patch geometry of the vision config.
    """
    for role in TEXT_RESOURCES:
        _resource(artifact, "text", role)
    if "vision" not in features:
        return
    config = artifact.components["vision"].config
    for role in VISION_RESOURCES:
        record = _resource(artifact, "vision", role)
        for member, source in (
            ("patch_size", "patch_size"),
            ("temporal_patch_size", "temporal_patch_size"),
            ("merge_size", "spatial_merge_size"),
        ):
            found, expected = record.get(member), config.get(source)
            if type(found) is not int or found != expected:
                raise ArtifactError(
                    f"resource {role!r}: {member} is {str(found)[:80]}, expected {expected} "
                    f"as {source} of the vision config"
                )


def required_parameters(artifact: Artifact, features: Collection[str]) -> Iterator[str]:
    """Yield the parameter names that text and the requested features consist of.

    Names follow the published model; the number and kind of layers follow the configs.
    """
    patterns = {
        "linear_attention": "text/layers/0/",
        "full_attention": "text/layers/3/",
        "vision": "vision/layers/0/",
        "dflash2": "dflash2/layers/0/",
        "mtp": "mtp/layers/0/",
    }
    suffixes = {
        kind: [p.name[len(start) :] for p in model_parameters() if p.name.startswith(start)]
        for kind, start in patterns.items()
    }
    for parameter in model_parameters():
        wanted = parameter.component == "text" or parameter.component in features
        if parameter.name == "proposal/token_ids" and not _is_indexed(artifact):
            continue
        if wanted and "/layers/" not in parameter.name:
            yield parameter.name
    for index, kind in enumerate(artifact.components["text"].config["layer_types"]):
        yield from (f"text/layers/{index}/{suffix}" for suffix in suffixes[kind])
    for component in ("vision", "mtp", "dflash2"):
        if component in features:
            for index in range(_layer_count(artifact, component)):
                block = f"{component}/layers/{index}"
                yield from (f"{block}/{suffix}" for suffix in suffixes[component])


def check_proposal(artifact: Artifact, public_tokens: int) -> None:
    """Check the proposal head against its declaration and the public ids `[0, V)`."""
    proposal = artifact.components["text"].proposal
    width = artifact.components["text"].config["hidden_size"]
    if proposal is None:
        raise ArtifactError(f"{artifact.path.name}: artifact has no proposal head")
    if proposal.rows is None:
        artifact.parameter("proposal/head", (_vocabulary(artifact), width))
        return
    if proposal.rows > public_tokens:
        raise ArtifactError(f"proposal: {proposal.rows} rows for {public_tokens} public tokens")
    artifact.parameter("proposal/head", (proposal.rows, width))
    stored = artifact.parameter("proposal/token_ids", (proposal.rows,))
    require_format(stored, ("int32",))
    check_proposal_ids(stored.decode(), public_tokens)


def check_proposal_ids(token_ids: np.ndarray, public_tokens: int) -> None:
    """Raise `ArtifactError` naming the first row whose id repeats or is outside `[0, V)`."""
    outside = (token_ids < 0) | (token_ids >= public_tokens)
    if outside.any():
        row = int(np.argmax(outside))
        raise ArtifactError(
            f"proposal/token_ids: row {row}: id {token_ids[row]} is outside [0, {public_tokens})"
        )
    order = np.argsort(token_ids, kind="stable")
    repeats = order[1:][np.diff(token_ids[order]) == 0]
    if repeats.size:
        row = int(repeats.min())
        raise ArtifactError(f"proposal/token_ids: row {row}: id {token_ids[row]} occurs before")


def require_format(stored: StoredTensor, supported: Collection[str]) -> None:
    """Raise `ArtifactError` unless a consumer supports the format of a parameter."""
    if stored.format not in supported:
        raise ArtifactError(
            f"parameter {stored.name!r}: format {stored.format!r} is not supported here, "
            f"expected one of {', '.join(supported)}"
        )


def check_auxiliaries(use: Use) -> None:
    """Raise `ArtifactError` for an auxiliary role whose meaning is unknown."""
    for role in use.auxiliaries:
        if role != INPUT_DIVISOR:
            raise ArtifactError(
                f"use {use.parameter}@{use.input}: unknown auxiliary {role!a}, "
                f"expected {INPUT_DIVISOR!r}"
            )


def input_divisor(artifact: Artifact, use: Use) -> np.float32:
    """Return the NVFP4 divisor of the activation operand of a use.

    Raises `ArtifactError` when the use has none, or it is not a finite positive fp32 scalar.
    """
    label = f"use {use.parameter}@{use.input}"
    stored = artifact.auxiliary(use, INPUT_DIVISOR)
    if stored is None:
        raise ArtifactError(f"{label}: policy {use.activation_policy} without {INPUT_DIVISOR}")
    if stored.format != "fp32" or stored.shape:
        raise ArtifactError(
            f"{label}: {INPUT_DIVISOR} is {stored.format} {list(stored.shape)}, "
            "expected an fp32 scalar"
        )
    value = stored.decode()[()]
    if not (np.isfinite(value) and value > 0):
        raise ArtifactError(f"{label}: {INPUT_DIVISOR} is {value}, expected finite and above 0")
    return value


def _resource(artifact: Artifact, component: str, role: str) -> dict:
    data = artifact.resource(component, role)
    where = f"resource {role!r}"
    if role.endswith(".json"):
        return Record(parse_json(data, where), where).value
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{where}: not UTF-8 at byte {error.start}") from None
    return {}


def _vocabulary(artifact: Artifact) -> int:
    rows = artifact.components["text"].config.get("vocab_size")
    if type(rows) is not int or rows <= 0:
        raise ArtifactError(f"component 'text'.config.vocab_size: {str(rows)[:80]!a}")
    return rows


def _is_indexed(artifact: Artifact) -> bool:
    proposal = artifact.components["text"].proposal
    return proposal is not None and proposal.domain == "indexed"


def _layer_count(artifact: Artifact, component: str) -> int:
    member = {"vision": "depth", "dflash2": "num_hidden_layers"}.get(component)
    return 1 if member is None else artifact.components[component].config[member]
