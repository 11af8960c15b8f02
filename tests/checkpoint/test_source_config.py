"""Facts, defaults and errors of source configs."""

from __future__ import annotations

import copy
import json

import pytest

from ninfer_jax.artifact.published_configs import dflash2_config, text_config, vision_config
from ninfer_jax.checkpoint.from_huggingface.source_config import (
    SourceConfig,
    dflash2_component,
)
from ninfer_jax.errors import ArtifactError
from tests.checkpoint.building import DFLASH2, TEXT, VISION

PUBLISHED_ROPE = {
    "rope_type": "default",
    "rope_theta": 10000000,
    "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10],
    "mrope_interleaved": True,
}


@pytest.fixture
def written(tmp_path):
    """Writes a config.json and returns its folder."""

    def write(config):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def edited(config, path, value):
    """A copy with the member at a dotted path replaced, or removed when the value is None."""
    config = copy.deepcopy(config)
    place, *_, last = config, *path.split(".")
    for key in path.split(".")[:-1]:
        place = place.setdefault(key, {})
    if value is None:
        place.pop(last)
    else:
        place[last] = value
    return config


def test_the_published_config_is_derived(written):
    text = text_config() | {"rope_parameters": PUBLISHED_ROPE, "rms_norm_eps": 1e-6}
    for key in ("architectures", "model_type", "layer_types", "tie_word_embeddings"):
        del text[key]
    vision = vision_config() | {"out_hidden_size": 5120, "in_channels": 3}
    source = SourceConfig(written({"text_config": text, "vision_config": vision}))
    assert source.nested
    assert source.text_component() == text_config()
    assert source.vision_component() == vision_config()
    assert not source.ties_embeddings


def test_a_flat_config_and_the_old_place_of_rope(written):
    text = text_config() | {"rope_theta": 1e7, "tie_word_embeddings": True}
    text["rope_scaling"] = {"type": "default", "mrope_section": [11, 11, 10], "factor": 1}
    del text["rope_parameters"], text["rms_norm_eps"]
    source = SourceConfig(written(text))
    assert not source.nested and source.ties_embeddings
    assert source.text_component() == text_config()


def test_the_published_drafter_is_derived(written):
    source = dflash2_config() | {"hidden_size": 5120, "vocab_size": 248320}
    source |= {"num_target_layers": 64, "rope_theta": 10000000}
    del source["rms_norm_eps"], source["layer_types"]
    source |= {"use_sliding_window": True, "max_window_layers": 0}
    assert dflash2_component(written(source), text_config()) == dflash2_config()


def test_layers_of_a_drafter_slide_from_a_layer_on(written):
    kinds = ["full_attention", "sliding_attention"]
    assert dflash2_component(written(DFLASH2), TEXT | {})["layer_types"] == kinds
    still = edited(DFLASH2, "use_sliding_window", False)
    config = dflash2_component(written(still), TEXT)
    assert config["layer_types"] == ["full_attention"] * 2 and "sliding_window" not in config


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("text_config.hidden_act", "gelu", "hidden_act: gelu, expected silu"),
        ("text_config.attention_bias", True, "attention_bias: True, expected False"),
        ("text_config.attn_output_gate", False, "attn_output_gate: False, expected True"),
        ("text_config.mamba_ssm_dtype", "bfloat16", "mamba_ssm_dtype: bfloat16, expected float32"),
        ("text_config.mtp_num_hidden_layers", 2, "mtp_num_hidden_layers: 2, expected 1"),
        (
            "text_config.mtp_use_dedicated_embeddings",
            True,
            "mtp_use_dedicated_embeddings: True, expected False",
        ),
        ("text_config.rope_parameters.rope_type", "yarn", "rope_type: yarn, expected default"),
        (
            "text_config.rope_parameters.mrope_interleaved",
            False,
            "mrope_interleaved: False, expected True",
        ),
        ("text_config.rope_parameters.factor", 4.0, "factor: 4.0, expected 1.0"),
        (
            "text_config.rope_scaling",
            {"mrope_section": [4, 2, 2]},
            "rope_scaling.mrope_section: [4, 2, 2], but [3, 3, 2] elsewhere",
        ),
        ("text_config.rope_scaling", 3, "rope_scaling: '3' is no object"),
        ("text_config.head_dim", None, "text_config: missing member 'head_dim'"),
        (
            "text_config.rope_parameters.mrope_section",
            None,
            "rope_parameters: missing member 'mrope_section'",
        ),
        ("text_config.num_hidden_layers", 1 << 40, "num_hidden_layers: 1099511627776, expected"),
        ("text_config.num_hidden_layers", "8", "num_hidden_layers: 8, expected 1..65536 layers"),
        ("text_config.full_attention_interval", 0, "full_attention_interval: 0, expected"),
        ("text_config.layer_types", ["other"] * 8, "layer_types[0]: unknown 'other'"),
        ("text_config.layer_types", 3, "layer_types: no list of entries"),
        ("text_config.rms_norm_eps", "x", "rms_norm_eps: 'x' is not a number"),
        ("text_config.num_key_value_heads", 3, "num_attention_heads 4 is not a multiple"),
        ("vision_config.in_channels", 4, "in_channels: 4, expected 3"),
        ("vision_config.hidden_act", "gelu", "hidden_act: gelu, expected gelu_pytorch_tanh"),
        ("vision_config.deepstack_visual_indexes", [8], "deepstack_visual_indexes: [8], expected"),
        ("vision_config.out_hidden_size", 64, "out_hidden_size: 64, expected 128"),
        ("vision_config.depth", 1 << 30, "depth: 1073741824, expected 1..65536 layers"),
        ("vision_config.depth", None, "vision_config: missing member 'depth'"),
        ("vision_config.num_position_embeddings", 15, "15 is not a perfect square"),
    ],
)
def test_a_fact_that_does_not_hold_is_named(written, path, value, message):
    config = edited({"text_config": TEXT, "vision_config": VISION}, path, value)
    with pytest.raises(ArtifactError) as caught:
        source = SourceConfig(written(config))
        source.text_component()
        source.vision_component()
    assert message in caught.value.message
    assert "config.json" in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("architectures", ["Other"], "architectures: ['Other'], expected ['DFlash2DraftModel']"),
        ("model_type", "llama", "model_type: llama, expected qwen3"),
        ("is_causal", True, "is_causal: True, expected False"),
        ("attention_bias", True, "attention_bias: True, expected False"),
        ("hidden_act", "gelu", "hidden_act: gelu, expected silu"),
        ("hidden_size", 64, "hidden_size: 64, expected 128"),
        ("vocab_size", 5, "vocab_size: 5, expected 1024"),
        ("num_target_layers", 9, "num_target_layers: 9, expected 8"),
        ("sample_from_anchor", True, "sample_from_anchor: True, expected False"),
        ("dflash_config.sample_from_anchor", True, "dflash_config.sample_from_anchor: True"),
        ("input_embedding_scale", 2.0, "input_embedding_scale: 2.0, expected 1.0"),
        ("output_multiplier", 0.5, "output_multiplier: 0.5, expected 1.0"),
        ("final_logit_softcapping", 30.0, "final_logit_softcapping: 30.0, expected None"),
        ("rope_scaling", {"factor": 2}, "factor: 2, expected 1.0"),
        ("sliding_window", None, "missing member 'sliding_window'"),
        ("dflash_config.mask_token_id", None, "dflash_config: missing member 'mask_token_id'"),
        ("layer_types", 3, "layer_types: '3' is no array"),
        ("max_window_layers", "x", "max_window_layers: 'x' is not an integer"),
    ],
)
def test_a_fact_of_the_drafter_is_named(written, path, value, message):
    with pytest.raises(ArtifactError) as caught:
        dflash2_component(written(edited(DFLASH2, path, value)), TEXT)
    assert message in caught.value.message and "config.json" in caught.value.message


def test_facts_are_checked_only_where_they_are_said(written):
    text = {key: value for key, value in TEXT.items() if key not in ("hidden_act",)}
    assert SourceConfig(written({"text_config": text})).text_component()["head_dim"] == 64
    harmless = DFLASH2 | {"final_logit_softcapping": None, "output_multiplier": 1}
    assert dflash2_component(written(harmless), TEXT)["sliding_window"] == 64


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not JSON"), ("[]", "no JSON object"), ("{}", "missing member")]
)
def test_unreadable_configs(written, content, message):
    with pytest.raises(ArtifactError, match=message):
        SourceConfig(written(content)).text_component()


def test_a_missing_config(tmp_path):
    with pytest.raises(ArtifactError, match=r"config\.json is missing"):
        SourceConfig(tmp_path)
