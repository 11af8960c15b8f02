"""Start-up refusals of `--spec`, and the proposal head."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.artifact import open_artifact
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.checkpoint.from_artifact import load_weights
from ninfer_jax.config import ServeConfig
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.config.resolve import resolve
from ninfer_jax.engine.build_drafter import build_drafter, wanted_features
from ninfer_jax.engine.drafters import DrafterWeights, draft_logits
from ninfer_jax.errors import ConfigError
from ninfer_jax.model.config import text_config
from ninfer_jax.model.decoder import build_decoder, merge_decoder
from tests.checkpoint.building import DEMO

F32 = jnp.dtype(jnp.float32)


def config(*flags: str) -> ServeConfig:
    return resolve(ServeConfig, ["--config", "demo.py", *flags], program="test").config


class Bare:
    """An artifact of a text component only."""

    path = DEMO
    components = {"text": type("Text", (), {"proposal": None})()}  # noqa: RUF012


@pytest.mark.parametrize("spec", ["mtp", "dflash2"])
def test_a_missing_component_is_named_with_both_remedies(spec):
    with pytest.raises(ConfigError) as raised:
        wanted_features(config("--spec", spec, "--draft-tokens", "3"), Bare)
    assert raised.value.message == (
        f"--spec {spec}: demo.ninfer has no component {spec!r}; serve an artifact that has it, "
        "or leave out --spec and --draft-tokens"
    )


def test_the_first_generation_drafter_belongs_to_another_model():
    with pytest.raises(ConfigError, match=r"another model .*--spec dflash2 or --spec mtp"):
        wanted_features(config("--spec", "dflash", "--draft-tokens", "3"), Bare)


def test_a_missing_proposal_head_is_named():
    class Drafting(Bare):
        components = Bare.components | {"mtp": None}

    flags = ("--spec", "mtp", "--draft-tokens", "3", "--lm-head-draft")
    with pytest.raises(ConfigError, match=r"demo\.ninfer has no proposal head; serve"):
        wanted_features(config(*flags), Drafting)


@functools.cache
def demo(*flags: str):
    """Decoder and drafter weights of the demo in f32."""
    place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    artifact = open_artifact(find_artifact("demo"))
    options = config("--spec", "dflash2", "--draft-tokens", "7", *flags)
    text = text_config(
        artifact.components["text"].config,
        check_artifact(artifact, wanted_features(options, artifact)),
    )
    graph, specs = build_decoder(text, F32)
    weights = load_weights(artifact, specs, F32, "dense", place)
    _, drafter = build_drafter(options, artifact, text, F32, "dense", place)
    return merge_decoder(graph, weights), drafter


def test_rows_of_the_proposal_head_are_rows_of_the_head():
    """A draft score of a token is its full score, and rows ascend by token."""
    decoder, weights = demo("--lm-head-draft")
    ids = np.asarray(weights.proposal.ids)
    assert len(ids) == 512 and (np.diff(ids) > 0).all()
    hidden = jnp.asarray(np.random.RandomState(0).randn(3, 256), jnp.float32)
    scores, tokens = draft_logits(decoder, weights, hidden)
    full, none = draft_logits(decoder, DrafterWeights(weights.module), hidden)
    assert none is None
    np.testing.assert_array_equal(tokens, ids)
    np.testing.assert_array_equal(np.asarray(scores), np.asarray(full)[:, ids])
    assert demo()[1].proposal is None


def test_special_tokens_can_be_proposed():
    _, weights = demo("--lm-head-draft")
    ids = set(np.asarray(weights.proposal.ids).tolist())
    # <|im_end|>, </think>, <tool_call>, </tool_call>
    assert {962, 985, 974, 975} <= ids
