"""Configs of block drafters: the published one, those of other models, and named errors."""

from __future__ import annotations

import dataclasses

import pytest

from ninfer_jax.artifact.config_rules import check_dflash2_config
from ninfer_jax.artifact.published_configs import dflash2_config as published_dflash2
from ninfer_jax.artifact.published_configs import text_config as published_text
from ninfer_jax.errors import ArtifactError
from ninfer_jax.model.config import text_config
from ninfer_jax.model.draft_config import dflash2_config

TEXT_27B = text_config(published_text(), 248077)


def test_the_published_config():
    """Every value of `docs/model.md` 5.3."""
    check_dflash2_config(published_dflash2(), published_text(), 248077)
    config = dflash2_config(published_dflash2(), TEXT_27B)
    found = dataclasses.asdict(config)
    assert found.pop("rms_norm_eps") == pytest.approx(1e-6)
    assert found == {
        "hidden_size": 5120,
        "vocab_size": 248320,
        "intermediate_size": 17408,
        "num_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1e7,
        "sliding_window": 2048,
        "taps": (5, 19, 33, 47, 61),
        "mask_token": 248070,
        "conv_taps": 2,
        "group_size": 16,
        "selector_rank": 256,
        "top_k": 16,
    }
    assert (config.query_width, config.key_value_width, config.feature_width) == (4096, 1024, 25600)


OTHERS = [
    ("is_causal", True, False),
    ("sample_from_anchor", True, False),
    ("input_embedding_scale", 0.5, 1),
    ("output_multiplier", 2.0, 1),
    ("final_logit_softcapping", 30.0, None),
]
"""Member, what a drafter of another model says, what is neutral."""


def inside(config: dict, change: dict) -> dict:
    """The config with a change of its `dflash_config`."""
    return config | {"dflash_config": config["dflash_config"] | change}


@pytest.mark.parametrize(("member", "other", "neutral"), OTHERS)
def test_drafters_of_other_models_are_refused(member, other, neutral):
    """Wherever they say it, also where the other object says the opposite."""
    config = published_dflash2()
    for outer, inner in (
        ({member: other}, {}),
        ({}, {member: other}),
        ({member: other}, {member: neutral}),
        ({member: neutral}, {member: other}),
    ):
        with pytest.raises(ArtifactError, match=f"{member} is {other}, expected {neutral}"):
            dflash2_config(inside(config | outer, inner), TEXT_27B)


def test_neutral_members_may_be_spelled_out():
    neutral = {member: value for member, _, value in OTHERS}
    expected = dflash2_config(published_dflash2(), TEXT_27B)
    assert dflash2_config(published_dflash2() | neutral, TEXT_27B) == expected
    assert dflash2_config(inside(published_dflash2(), neutral), TEXT_27B) == expected


@pytest.mark.parametrize(
    "types", [["full_attention"] * 5, ["sliding_attention"] * 4 + ["full_attention"]]
)
def test_every_layer_has_a_window(types):
    """The first DFlash has a full layer."""
    with pytest.raises(ArtifactError, match="every layer must be sliding_attention"):
        dflash2_config(published_dflash2() | {"layer_types": types}, TEXT_27B)


@pytest.mark.parametrize(
    "member", ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"]
)
def test_what_the_first_dflash_lacks_is_named(member):
    """The general rules, which every artifact is checked by before this config is read."""
    config = published_dflash2()
    rest = {name: value for name, value in config["dflash_config"].items() if name != member}
    with pytest.raises(ArtifactError, match=f"missing member '{member}'"):
        check_dflash2_config(config | {"dflash_config": rest}, published_text(), 248077)


def test_the_mask_is_an_id_of_the_tokenizer():
    last = inside(published_dflash2(), {"mask_token_id": 248076})
    assert dflash2_config(last, TEXT_27B).mask_token == 248076
    unaddressable = inside(published_dflash2(), {"mask_token_id": 248077})
    with pytest.raises(ArtifactError, match="248077 is none of the tokenizer's 248077 ids"):
        dflash2_config(unaddressable, TEXT_27B)
