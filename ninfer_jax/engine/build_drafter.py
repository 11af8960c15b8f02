"""From `--spec`, `--draft-tokens` and `--lm-head-draft` to a drafter with its weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ninfer_jax.artifact import Artifact
from ninfer_jax.checkpoint.from_artifact import Placement, load_matrix, load_weights
from ninfer_jax.config import ServeConfig
from ninfer_jax.engine.drafters import (
    DFlash2Drafter,
    Drafter,
    DrafterWeights,
    MtpDrafter,
    ProposalHead,
)
from ninfer_jax.errors import ConfigError
from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.dflash2 import DFlash2
from ninfer_jax.model.draft_config import dflash2_config
from ninfer_jax.model.mtp import MultiTokenPrediction
from ninfer_jax.model.weights import MatrixSpec
from ninfer_jax.quantization.kv import CODECS
from ninfer_jax.quantization.weights import DenseWeight, Nvfp4Weight, Weight


def wanted_features(config: ServeConfig, artifact: Artifact) -> tuple[str, ...]:
    """The parts of an artifact that the drafting settings need.

    Raises:
      ConfigError: the artifact does not have one, or the drafter belongs to another model.
    """
    if config.spec is None:
        return ()
    if config.spec == "dflash":
        raise ConfigError(
            "--spec dflash is the first-generation drafter of another model (35B, mixture of "
            "experts); with this model use --spec dflash2 or --spec mtp"
        )
    if config.spec not in artifact.components:
        raise ConfigError(
            f"--spec {config.spec}: {artifact.path.name} has no component {config.spec!r}; serve "
            "an artifact that has it, or leave out --spec and --draft-tokens"
        )
    if not config.lm_head_draft:
        return (config.spec,)
    if artifact.components["text"].proposal is None:
        raise ConfigError(
            f"--lm-head-draft: {artifact.path.name} has no proposal head; serve an artifact that "
            "has one, or leave out --lm-head-draft"
        )
    return (config.spec, "proposal")


def build_drafter(
    config: ServeConfig,
    artifact: Artifact,
    text: TextConfig,
    dtype: jnp.dtype,
    placement: Placement,
    sharding: jax.sharding.Sharding,
) -> tuple[Drafter | None, DrafterWeights | None]:
    """The drafter that was asked for, or None twice."""
    if config.spec is None:
        return None, None
    if config.spec == "mtp":
        graph, specs = _split(MultiTokenPrediction(text))
        drafter = MtpDrafter(graph, CODECS[config.kv_dtype], config.draft_tokens)
    else:
        draft = dflash2_config(artifact.components["dflash2"].config, text)
        graph, specs = _split(DFlash2(draft))
        if draft.sliding_window <= config.draft_tokens:
            raise ConfigError(
                f"--draft-tokens {config.draft_tokens}: the drafter's window of "
                f"{draft.sliding_window} positions does not hold such a block"
            )
        # The ring is small and is not worth a codec that loses something.
        drafter = DFlash2Drafter(graph, draft, CODECS["bf16"], config.draft_tokens)
    module = load_weights(artifact, specs, dtype, placement, sharding)
    proposal = None
    if config.lm_head_draft:
        proposal = jax.device_put(_proposal(artifact, text, dtype, placement), sharding)
    return drafter, DrafterWeights(module, proposal)


def _split(module: nnx.Module) -> tuple[nnx.GraphDef, dict]:
    graph, state = nnx.split(module)
    return graph, nnx.to_pure_dict(state)


def _proposal(
    artifact: Artifact, text: TextConfig, dtype: jnp.dtype, placement: Placement
) -> ProposalHead:
    """The reduced head with its rows in the order of their ids.

    In that order the better of two equal scores is the lower row and the lower id alike.
    """
    rows = artifact.components["text"].proposal.rows
    count = text.vocab_size if rows is None else rows
    spec = MatrixSpec(("proposal/head",), (count,), text.hidden_size, ("vocabulary", "model_width"))
    artifact.prepare(("proposal/head",))
    head = load_matrix(artifact, spec, np.dtype(dtype), placement)
    if rows is None:
        return ProposalHead(head, None)
    ids = artifact.parameter("proposal/token_ids", (rows,)).decode()
    order = np.argsort(ids, kind="stable")
    return ProposalHead(
        tuple(_in_order(weight, order) for weight in head), ids[order].astype(np.int32)
    )


def _in_order(weight: Weight, order: np.ndarray) -> Weight:
    if isinstance(weight, Nvfp4Weight):
        return Nvfp4Weight(weight.codes[order], weight.scales[order], weight.divisor)
    if isinstance(weight, DenseWeight) and weight.scale is None:
        return DenseWeight(weight.matrix[order])
    return jax.tree.map(lambda rows: rows[order], weight)
