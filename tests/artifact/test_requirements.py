"""What a consumer may demand: features, configs, resources, proposal, divisors, token ids."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ninfer_jax.artifact import Proposal, open_artifact
from ninfer_jax.artifact.config_rules import (
    check_dflash2_config,
    check_text_config,
    check_vision_config,
    interleaved_section,
)
from ninfer_jax.artifact.published_configs import dflash2_config, text_config, vision_config
from ninfer_jax.artifact.requirements import (
    FEATURES,
    check_artifact,
    check_features,
    check_proposal_ids,
    input_divisor,
    require_format,
)
from ninfer_jax.artifact.token_ids import check_token_ids
from ninfer_jax.errors import ArtifactError


def refuses(model, message, features=FEATURES):
    with open_artifact(model.write()) as artifact, pytest.raises(ArtifactError) as caught:
        check_artifact(artifact, features)
    assert message in caught.value.message


def test_a_complete_model_passes(tiny_model):
    with open_artifact(tiny_model.write()) as artifact:
        assert check_artifact(artifact, FEATURES) == 12
        assert check_artifact(artifact) == 12
    with pytest.raises(ValueError, match="unknown feature 'audio'"):
        check_features(artifact, ["audio"])


@pytest.mark.parametrize(
    ("component", "member", "value", "message"),
    [
        ("text", "architectures", ["Llama"], "config.architectures: unsupported \"['Llama']\""),
        ("text", "model_type", "qwen2", "config.model_type: unsupported 'qwen2', expected 'qwen3_"),
        ("mtp", "architectures", None, "component 'mtp'.config.architectures: unsupported 'None'"),
        ("vision", "model_type", "vit", "component 'vision'.config.model_type: unsupported 'vit'"),
        ("dflash2", "model_type", "qwen4", "component 'dflash2'.config.model_type: unsupported"),
    ],
)
def test_23_unsupported_architectures(tiny_model, component, member, value, message):
    tiny_model.configs[component][member] = value
    refuses(tiny_model, message)


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("text/final_norm", ()),
        ("text/layers/3/attention/gate", ()),
        ("text/layers/2/gdn/z", ()),
        ("mtp/layers/0/mlp/up", ("mtp",)),
        ("vision/layers/0/mlp/fc2_bias", ("vision",)),
        ("dflash2/layers/0/attention/context_key", ("dflash2",)),
        ("proposal/token_ids", ("proposal",)),
    ],
)
def test_24_and_29_missing_parameters(tiny_model, name, features):
    del tiny_model.tensors[name]
    refuses(tiny_model, f"tiny.ninfer: parameter '{name}' is missing", features)
    if features:
        with open_artifact(tiny_model.path) as artifact:
            check_artifact(artifact)


def test_26_and_27_shape_and_format(tiny_model):
    with open_artifact(tiny_model.write()) as artifact:
        with pytest.raises(ArtifactError, match=r"has shape \[1\], expected \[5120\]"):
            artifact.parameter("text/final_norm", (5120,))
        stored = artifact.parameter("text/final_norm")
        with pytest.raises(
            ArtifactError,
            match="parameter 'text/final_norm': format 'bf16' is not supported here, expected one",
        ):
            require_format(stored, ("fp32", "nvfp4"))


@pytest.mark.parametrize("feature", ["dflash2", "vision", "mtp"])
def test_28_and_30_absent_components(tiny_model, feature):
    del tiny_model.configs[feature]
    refuses(tiny_model, f"artifact has no {feature} component but {feature} was requested")


def test_31_no_proposal_head(tiny_model):
    tiny_model.proposal = None
    refuses(tiny_model, "artifact has no proposal head but proposal was requested")


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([7, 0, 12, 3], "proposal/token_ids: row 2: id 12 is outside [0, 12)"),
        ([7, -1, 99, 3], "proposal/token_ids: row 1: id -1 is outside [0, 12)"),
        ([7, 0, 3, 7], "proposal/token_ids: row 3: id 7 occurs before"),
        ([5, 5, 0, 0], "proposal/token_ids: row 1: id 5 occurs before"),
    ],
)
def test_32_proposal_ids(tiny_model, token_ids, message):
    tiny_model.tensors["proposal/token_ids"] = (
        "int32",
        (4,),
        np.array(token_ids, "<i4").tobytes(),
    )
    refuses(tiny_model, message)


def test_32_proposal_rows(tiny_model):
    tiny_model.proposal = Proposal("indexed", 13)
    refuses(tiny_model, "proposal: 13 rows for 12 public tokens")
    tiny_model.path = tiny_model.path.with_name("second")
    tiny_model.proposal = Proposal("indexed", 5)
    refuses(tiny_model, "'proposal/head': object 'proposal/head' has shape [4, 64], expected [5, 6")
    check_proposal_ids(np.array([2, 1, 0]), 3)


def test_full_proposal_needs_every_row(tiny_model):
    tiny_model.proposal = Proposal("full")
    del tiny_model.tensors["proposal/token_ids"]
    refuses(tiny_model, "has shape [4, 64], expected [16, 64]")
    tiny_model.path = tiny_model.path.with_name("second")
    tiny_model.tensors["proposal/head"] = ("bf16", (16, 64), bytes(2 * 16 * 64))
    with open_artifact(tiny_model.write()) as artifact:
        check_artifact(artifact, FEATURES)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (("fp32", (), np.float32(0).tobytes()), "activation_input_divisor is 0.0, expected finite"),
        (("fp32", (), np.float32(-1).tobytes()), "activation_input_divisor is -1.0"),
        (("fp32", (), np.float32(np.inf).tobytes()), "activation_input_divisor is inf"),
        (("fp32", (), np.float32(np.nan).tobytes()), "activation_input_divisor is nan"),
        (("fp32", (1,), bytes(4)), "is fp32 [1], expected an fp32 scalar"),
        (("bf16", (), bytes(2)), "is bf16 [], expected an fp32 scalar"),
    ],
)
def test_33_input_divisors(tiny_model, entry, message):
    tiny_model.tensors["divisor"] = entry
    refuses(tiny_model, "use text/layers/0/mlp/down@text/layers/0/mlp/product: activation_input")
    with open_artifact(tiny_model.path) as artifact:
        with pytest.raises(ArtifactError) as caught:
            input_divisor(artifact, artifact.uses[0])
        assert message in caught.value.message


def test_33_absent_divisor_and_unknown_roles(tiny_model):
    tiny_model.divisor_role = None
    with open_artifact(tiny_model.write()) as artifact:
        check_artifact(artifact)
        with pytest.raises(ArtifactError, match="policy AllowA4 without activation_input_divisor"):
            input_divisor(artifact, artifact.uses[0])
    tiny_model.path = tiny_model.path.with_name("second")
    tiny_model.divisor_role = "input_columns"
    refuses(tiny_model, "mlp/product: unknown auxiliary 'input_columns', expected 'activation_inp")


@pytest.mark.parametrize(
    ("key", "data", "message"),
    [
        (("text", "chat_template.jinja"), None, "has no resource 'chat_template.jinja'"),
        (("vision", "preprocessor_config.json"), None, "no resource 'preprocessor_config.json'"),
        (("text", "chat_template.jinja"), b"\xff", "resource 'chat_template.jinja': not UTF-8"),
        (("text", "generation_config.json"), b"[]", "resource 'generation_config.json': expected"),
        (("text", "generation_config.json"), b"{", "resource 'generation_config.json': not JSON"),
        (
            ("vision", "preprocessor_config.json"),
            b'{"patch_size":16,"temporal_patch_size":2,"merge_size":3}',
            "merge_size is 3, expected 2 as spatial_merge_size of the vision config",
        ),
        (
            ("vision", "video_preprocessor_config.json"),
            b'{"patch_size":16,"merge_size":2}',
            "temporal_patch_size is None, expected 2",
        ),
    ],
)
def test_36_resources(tiny_model, key, data, message):
    if data is None:
        del tiny_model.resources[key]
    else:
        tiny_model.resources[key] = data
    refuses(tiny_model, message)


def tokenizer(vocab, added=()):
    entries = [{"id": index, "content": content} for index, content in added]
    return json.dumps({"model": {"vocab": vocab}, "added_tokens": entries}).encode()


def decoder(entries):
    return json.dumps(
        {"added_tokens_decoder": {key: {"content": content} for key, content in entries.items()}}
    ).encode()


@pytest.mark.parametrize(
    ("model", "config", "rows", "message"),
    [
        (tokenizer({"a": 0, "b": 2}), b"{}", 4, "token id 1 is missing: ids reach 2 but only 2"),
        (tokenizer({"a": 0}, [(1, "x")]), decoder({"1": "y"}), 4, "token id 1 is 'y' here, 'x' b"),
        (tokenizer({"a": 0, "b": 0}), b"{}", 4, "tokenizer.json: token id 0 is 'b' here, 'a' bef"),
        (tokenizer({"a": 0, "b": 1}), b"{}", 1, "token id 1 is outside the 1 rows of the vocabul"),
        (tokenizer({"a": 0}), decoder({"9": "x"}), 4, "tokenizer_config.json: token id 9 is outs"),
        (tokenizer({"a": -1}), b"{}", 4, "token id -1 is outside"),
        (tokenizer({"a": "0"}), b"{}", 4, "token 'a' has no integer id"),
        (tokenizer({"a": 0}), decoder({"one": "x"}), 4, "'one' is not a token id"),
        (tokenizer({}), b"{}", 4, "tokenizer.json: the vocabulary is empty"),
        (b"{}", b"{}", 4, "tokenizer.json: missing member 'model'"),
        (b"[]", b"{}", 4, "tokenizer.json: expected an object, got array"),
        (b"\xff", b"{}", 4, "tokenizer.json: not UTF-8 at byte 0"),
    ],
)
def test_37_token_ids(model, config, rows, message):
    with pytest.raises(ArtifactError) as caught:
        check_token_ids(model, config, rows)
    assert message in caught.value.message


def test_public_ids_are_the_union_of_both_files():
    model = tokenizer({"a": 0, "b": 1}, [(2, "<s>")])
    assert check_token_ids(model, decoder({"2": "<s>", "3": "<e>"}), 8) == 4


def edited(config, path, value):
    *parents, last = path.split(".")
    target = config
    for name in parents:
        target = target[name]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("hidden_size", 0, "config.hidden_size: 0 is outside 1..2^31-1"),
        ("hidden_size", 1 << 40, "config.hidden_size: 1099511627776 is outside"),
        ("hidden_size", 2.0, "config.hidden_size: '2.0' is not an integer"),
        ("hidden_size", True, "config.hidden_size: 'True' is not an integer"),
        ("vocab_size", None, "component 'text'.config: missing member 'vocab_size'"),
        ("num_key_value_heads", 5, "num_attention_heads 24 is not a multiple of num_key_value_h"),
        ("linear_num_key_heads", 7, "linear_num_value_heads 48 is not a multiple of"),
        ("layer_types", ["full_attention"], "1 entries, expected num_hidden_layers = 64"),
        ("layer_types", "all", "layer_types: no list of entries"),
        ("layer_types", ["linear_attention"] * 63 + ["x"], "layer_types[63]: unknown 'x', expec"),
        ("rms_norm_eps", 0, "rms_norm_eps: 0 is not positive and finite in binary32"),
        ("rms_norm_eps", 1e-60, "rms_norm_eps: 1e-60 is not positive and finite"),
        ("rms_norm_eps", "1", "rms_norm_eps: '1' is not a number"),
        ("rope_parameters", [], "config.rope_parameters: expected an object, got array"),
        ("rope_parameters.rope_theta", 1e60, "rope_theta: 1e+60 is not positive and finite"),
        ("rope_parameters.partial_rotary_factor", 1.5, "partial_rotary_factor: 1.5 gives a rot"),
        ("rope_parameters.partial_rotary_factor", 0.254, "gives a rotary width of 65"),
        ("rope_parameters.mrope_section", [11, 11], "mrope_section: [11, 11], expected 3 entrie"),
        ("rope_parameters.mrope_section", [11, 11, 11], "entries that add up to 32"),
        ("rope_parameters.mrope_section", [2, 20, 10], "cannot be interleaved, the rule gives ["),
        ("rope_parameters.mrope_section", [11, 22, -1], "has an entry out of range"),
    ],
)
def test_38_text_config(path, value, message):
    check_text_config(text_config())
    with pytest.raises(ArtifactError) as caught:
        check_text_config(edited(text_config(), path, value))
    assert message in caught.value.message


def test_38_interleaving():
    assert interleaved_section([11, 11, 10]) == [11, 11, 10]
    assert interleaved_section([8, 0, 0]) == [8, 0, 0]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("num_heads", 7, "hidden_size 1152 is not a multiple of num_heads 7"),
        ("num_heads", 64, "head width 18 is not a multiple of 4"),
        ("num_position_embeddings", 2305, "num_position_embeddings: 2305 is not a perfect square"),
        ("depth", None, "component 'vision'.config: missing member 'depth'"),
    ],
)
def test_38_vision_config(path, value, message):
    check_vision_config(vision_config())
    with pytest.raises(ArtifactError) as caught:
        check_vision_config(edited(vision_config(), path, value))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("dflash_config.target_layer_ids", [], "target_layer_ids: [], expected distinct layers in"),
        ("dflash_config.target_layer_ids", [5, 64], "[5, 64], expected distinct layers in [0, 64)"),
        ("dflash_config.target_layer_ids", [5, 5], "[5, 5], expected distinct layers in [0, 64)"),
        ("dflash_config.target_layer_ids", [True], "target_layer_ids: expected an array of inte"),
        ("dflash_config.mask_token_id", 248320, "mask_token_id: 248320 is outside [0, 248320)"),
        ("dflash_config.conv_group_size", 7, "conv_group_size: 7 does not divide 5120"),
        ("dflash_config.selector_top_k", 200, "selector_top_k: 200 is above the 100 proposable"),
        ("head_dim", 127, "component 'dflash2'.config.head_dim: 127 is odd"),
        ("num_key_value_heads", 5, "num_attention_heads 32 is not a multiple of"),
        ("sliding_window", None, "component 'dflash2'.config: missing member 'sliding_window'"),
        ("dflash_config", None, "component 'dflash2'.config: missing member 'dflash_config'"),
        ("rms_norm_eps", -1.0, "rms_norm_eps: -1.0 is not positive"),
    ],
)
def test_38_dflash2_config(path, value, message):
    check_dflash2_config(dflash2_config(), text_config(), 100)
    with pytest.raises(ArtifactError) as caught:
        check_dflash2_config(edited(dflash2_config(), path, value), text_config(), 100)
    assert message in caught.value.message


def test_a_config_may_not_ask_for_endless_layers(tiny_model):
    tiny_model.configs["vision"]["depth"] = (1 << 31) - 1
    refuses(tiny_model, "parameter 'vision/layers/1/norm1_weight' is missing")
