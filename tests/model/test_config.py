"""Dimensions from a component config, and what is refused."""

from __future__ import annotations

import copy

import pytest

from ninfer_jax.artifact.published_configs import text_config as published_text_config
from ninfer_jax.errors import ArtifactError
from ninfer_jax.model.config import text_config
from tests.golden.cases import DEMO, TINY


def test_dimensions_of_the_27b():
    config = text_config(published_text_config(), 248077)
    assert config.num_layers == 64
    assert config.full_attention_layers == tuple(range(3, 64, 4))
    assert len(config.linear_attention_layers) == 48
    assert (config.query_width, config.key_value_width) == (6144, 1024)
    assert (config.linear_key_width, config.linear_value_width) == (2048, 6144)
    assert config.convolution_width == 10240
    assert config.rotary_width == 64
    assert config.mrope_section == (11, 11, 10)
    assert config.addressable_ids == 248077


def test_dimensions_of_small_models():
    tiny, demo = text_config(TINY, 500), text_config(DEMO, 1000)
    assert (tiny.rotary_width, demo.rotary_width) == (16, 16)
    assert tiny.full_attention_layers == (3, 7)
    assert hash(tiny) == hash(text_config(copy.deepcopy(TINY), 500)), "a key of compiled programs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tie_word_embeddings": True}, "tie_word_embeddings is true, expected false"),
        ({"vocab_size": 400}, "the tokenizer defines 500 ids, vocab_size is 400"),
        ({"num_attention_heads": 5}, "num_attention_heads 5 is not a multiple of num_key_value_"),
        ({"linear_num_value_heads": 5}, "linear_num_value_heads 5 is not a multiple of linear_num"),
        ({"layer_types": ["full_attention"]}, "layer_types: 1 entries, expected num_hidden_layers"),
        ({"layer_types": ["mamba"] * 8}, "layer_types[0]: unknown 'mamba'"),
        ({"hidden_size": 0}, "hidden_size: 0 is outside 1..2^31-1"),
        ({"hidden_size": "64"}, "hidden_size: '64' is not an integer"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps: -1e-06 is not positive"),
        ({"rope_parameters": {}}, "missing member 'rope_theta'"),
        ({"model_type": "llama"}, "model_type: unsupported 'llama'"),
    ],
)
def test_refusals_name_the_member(change, message):
    with pytest.raises(ArtifactError) as caught:
        text_config(TINY | change, 500)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mrope_section": [3, 3, 3]}, "expected 3 entries that add up to 8"),
        ({"mrope_section": [8, 0]}, "expected 3 entries"),
        ({"mrope_section": [1, 4, 3]}, "cannot be interleaved"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor: 1.5"),
        ({"partial_rotary_factor": 0.1}, "gives a rotary width of 3, expected even"),
        ({"rope_theta": 0}, "rope_theta: 0 is not positive"),
    ],
)
def test_rope_refusals(change, message):
    component = TINY | {"rope_parameters": TINY["rope_parameters"] | change}
    with pytest.raises(ArtifactError) as caught:
        text_config(component, 500)
    assert message in caught.value.message
