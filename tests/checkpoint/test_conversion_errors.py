"""What a conversion refuses, what it takes apart, and what it resumes."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.artifact import open_artifact
from ninfer_jax.checkpoint.from_huggingface import convert_checkpoint
from ninfer_jax.checkpoint.from_huggingface.convert import _identity
from ninfer_jax.checkpoint.from_huggingface.inputs import open_inputs
from ninfer_jax.checkpoint.from_huggingface.plan import plan_objects
from ninfer_jax.errors import ArtifactError
from tests.checkpoint.building import (
    DFLASH2,
    TEXT,
    VISION,
    demo_resources,
    dflash2_shapes,
    mtp_shapes,
    random_bf16,
    random_quantised,
    text_shapes,
    vision_shapes,
    write_checkpoint,
)

P = "model.language_model."
CONFIG = {"text_config": TEXT, "vision_config": VISION}


class Model:
    """Editable parts of a tiny base and a tiny quantised checkpoint."""

    def __init__(self, folder):
        self.folder = folder
        self.tensors = random_bf16(text_shapes(TEXT, P), 1)
        self.tensors |= random_bf16(mtp_shapes(TEXT), 2) | random_bf16(vision_shapes(VISION), 3)
        self.words = random_quantised(TEXT, P, 4)
        self.config = json.loads(json.dumps(CONFIG))
        self.words_config = {"text_config": dict(TEXT)}
        self.resources = demo_resources()

    def base(self):
        return write_checkpoint(self.folder / "base", self.config, self.tensors, self.resources)

    def quantised(self):
        return write_checkpoint(self.folder / "words", self.words_config, self.words)

    def plan(self, profile="nvfp4", dflash2=None, frequencies=None):
        """Plan with words and base, or with the base alone for integers."""
        base = self.base()
        source = self.quantised() if profile == "nvfp4" else base
        inputs = open_inputs(source, profile, base, dflash2, frequencies)
        return plan_objects(inputs.planned, profile)

    def convert(self, source, profile="nvfp4", **given):
        options = {"base": None, "dflash2": None, "frequencies": None} | given
        return convert_checkpoint(
            source,
            self.folder / "out.ninfer",
            profile=profile,
            file_limit=1 << 40,
            progress=lambda name, count: None,
            **options,
        )[0]


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path)


def refuse(model, message, **options):
    with pytest.raises(ArtifactError) as caught:
        model.plan(**options)
    assert message in caught.value.message, caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        f"{P}layers.3.self_attn.q_proj.weight",
        "mtp.norm.weight",
        "model.visual.blocks.1.attn.qkv.bias",
    ],
)
def test_a_missing_tensor_is_named(model, name):
    del model.tensors[name]
    refuse(model, f"base: tensor {name!r} is missing", profile="groupwise-int")


@pytest.mark.parametrize("suffix", ["weight_scale", "weight_global_scale"])
def test_missing_scales_are_named(model, suffix):
    name = f"{P}layers.0.mlp.up_proj.{suffix}"
    del model.words[name]
    refuse(model, f"words: tensor {name!r} is missing")


def test_a_missing_component_is_named(model):
    model.tensors = {n: t for n, t in model.tensors.items() if not n.startswith("mtp.")}
    refuse(model, "mtp_num_hidden_layers promises component 'mtp', but there is no tensor mtp.*")


def test_a_component_nobody_promises_is_left_out(model):
    model.tensors = {n: t for n, t in model.tensors.items() if not n.startswith("mtp.")}
    del model.config["text_config"]["mtp_num_hidden_layers"]
    assert not any(name.startswith("mtp/") for name in model.plan().bindings)


def test_vision_tensors_need_their_config(model):
    del model.config["vision_config"]
    refuse(model, "vision_config is missing, but the checkpoint has vision tensors")


@pytest.mark.parametrize("name", ["tokenizer.json", "video_preprocessor_config.json"])
def test_a_missing_resource_is_named(model, name):
    del model.resources[name]
    refuse(model, f"base: resource {name!r} is missing")


def test_an_empty_resource_and_another_patch_size(model):
    model.resources["chat_template.jinja"] = b""
    refuse(model, "chat_template.jinja: the resource is empty")


def test_preprocessors_must_fit_the_vision_config(model):
    model.resources["preprocessor_config.json"] = b'{"patch_size": 16}'
    refuse(model, "'preprocessor_config.json': patch_size is 16, expected 4 as patch_size")


def test_another_shape_or_type_is_named(model):
    name = f"{P}layers.3.self_attn.k_proj.weight"
    model.tensors[name] = model.tensors[name][:64]
    refuse(
        model,
        f"tensor {name!r} has shape [64, 128], expected [128, 128]",
        profile="groupwise-int",
    )


def test_another_type_is_named(model):
    name = f"{P}layers.0.mlp.gate_proj.weight_packed"
    model.words[name] = model.words[name].view(np.int8)
    refuse(model, f"tensor {name!r} is I8, expected U8")


def test_base_and_source_must_be_one_model(model):
    model.words_config["text_config"]["rms_norm_eps"] = 1e-5
    refuse(model, "rms_norm_eps is 9.999999974752427e-07, but 9.999999747378752e-06 in the other")


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
@pytest.mark.parametrize("suffix", ["weight_global_scale", "input_global_scale"])
def test_divisors_are_positive_and_finite(model, suffix, value):
    name = f"{P}layers.0.mlp.down_proj.{suffix}"
    model.words[name] = np.array([value], np.float32)
    refuse(model, f"{name!r} is {np.float32(value)}, expected a finite divisor above 0")


def test_words_are_no_source_of_integers(model):
    base, words = model.base(), model.quantised()
    for name, data in model.resources.items():
        (words / name).write_bytes(data)
    (words / "config.json").write_text(
        json.dumps({"text_config": {k: v for k, v in TEXT.items() if "mtp" not in k}})
    )
    with pytest.raises(ArtifactError, match=r"lm_head. is quantised already"):
        model.convert(words, "groupwise-int")
    ranking = model.folder / "ranking.bin"
    ranking.write_bytes(np.zeros(1024, "<i8").tobytes())
    with pytest.raises(ArtifactError, match="proposal/head is encoded as q4_g64_fp16"):
        model.convert(words, frequencies=ranking)
    assert open_inputs(words, "groupwise-int", base, None, None).planned


def test_different_divisors_keep_gate_and_up_apart(model):
    model.words[f"{P}layers.2.mlp.up_proj.weight_global_scale"] += 1
    bindings = model.plan().bindings
    assert bindings["text/layers/2/mlp/gate"].object != bindings["text/layers/2/mlp/up"].object
    assert bindings["text/layers/2/mlp/up"].object is not None
    assert bindings["text/layers/1/mlp/up"].object is None


def test_words_without_calibration_stay_at_sixteen_bits(model):
    for part in ("gate", "up", "down"):
        del model.words[f"{P}layers.2.mlp.{part}_proj.input_global_scale"]
    plan = model.plan()
    policies = {use.parameter: use.activation_policy for use in plan.uses}
    assert policies["text/layers/2/mlp/up"] == "A16Only"
    assert policies["text/layers/1/mlp/up"] == "AllowA4"
    assert len(plan.divisors) == 3 * 6


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        (f"{P}layers.3.self_attn.o_proj.weight", 0x7F, "NaN code"),
        (f"{P}layers.0.mlp.down_proj.weight_scale", 0x80, "is negative or NaN"),
    ],
)
def test_illegal_words_are_found_while_writing(model, name, word, message):
    model.words[name].view(np.uint8)[2, 3] = word
    with pytest.raises(ArtifactError, match=message) as caught:
        model.convert(model.quantised(), base=model.base())
    tensor = name.replace("weight_scale", "weight")
    assert f"tensor {tensor!r}" in caught.value.message
    assert not (model.folder / "out.ninfer").exists()


def test_values_that_cannot_be_encoded_are_found_while_writing(model):
    name = f"{P}layers.1.mlp.down_proj.weight"
    model.tensors[name][5, 6] = np.inf
    with pytest.raises(ArtifactError, match="row 5 holds infinity or NaN") as caught:
        model.convert(model.base())
    assert f"tensor {name!r}" in caught.value.message


def test_an_f32_checkpoint_gives_the_same_artifact_as_its_bf16_twin(model):
    first = model.convert(model.base())
    wide = {n: t.astype(np.float32) for n, t in model.tensors.items()}
    twin = write_checkpoint(model.folder / "twin" / "base", CONFIG, wide, model.resources)
    first = first.rename(model.folder / "first.ninfer")
    with open_artifact(first) as one, open_artifact(model.convert(twin)) as two:
        assert one.objects == two.objects
        for id in one.objects:
            assert one.object_words(id) == two.object_words(id), id


def test_data_that_begins_at_an_odd_byte_is_read_alike(model):
    base = model.base()
    first = model.convert(base, dflash2=None).rename(model.folder / "first.ninfer")
    path = base / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little") + 1
    path.write_bytes(
        length.to_bytes(8, "little") + data[8 : 7 + length] + b" " + data[7 + length :]
    )
    with open_artifact(first) as one, open_artifact(model.convert(base)) as two:
        for id in one.objects:
            assert one.object_words(id) == two.object_words(id), id


def test_packed_integers_of_a_head_are_no_source_of_proposal_rows(model):
    columns, rows = TEXT["hidden_size"], TEXT["vocab_size"]
    del model.tensors["lm_head.weight"]
    model.tensors["lm_head.weight_packed"] = np.zeros((rows, columns // 4), np.int32)
    model.tensors["lm_head.weight_scale"] = np.zeros((rows, columns // 32), np.float16)
    ranking = model.folder / "ranking.bin"
    ranking.write_bytes(np.zeros(1024, "<i8").tobytes())
    message = "'lm_head' is quantised already, but proposal/head is encoded as q4_g64_fp16"
    refuse(model, message, profile="groupwise-int", frequencies=ranking)


def test_packed_integers_of_no_known_width_are_named(model):
    del model.tensors["mtp.fc.weight"]
    model.tensors["mtp.fc.weight_packed"] = np.zeros((128, 3), np.int32)
    model.tensors["mtp.fc.weight_scale"] = np.zeros((128, 8), np.float16)
    refuse(model, "'mtp.fc.weight_packed' has shape [128, 3], expected [128, 64]")


def test_f32_norms_beyond_bf16_are_not_rounded_silently(model):
    name = f"{P}norm.weight"
    model.tensors[name] = model.tensors[name].astype(np.float32) + np.float32(1e-3)
    with pytest.raises(ArtifactError, match="is no BF16 number, and this parameter is stored as"):
        model.convert(model.base())


def test_tied_embeddings_give_the_output_head(model):
    del model.tensors["lm_head.weight"]
    model.config["text_config"]["tie_word_embeddings"] = True
    with open_artifact(model.convert(model.base())) as artifact:
        words = [
            artifact.parameter(f"text/{name}").words()["codes"]
            for name in ("token_embedding", "output_head")
        ]
        np.testing.assert_array_equal(*words)
        assert artifact.components["text"].config["tie_word_embeddings"] is False


def test_a_matrix_that_tiles_do_not_divide_keeps_eight_bits(model):
    text = TEXT | {"intermediate_size": 192}
    model.config["text_config"] = text
    model.tensors |= random_bf16(text_shapes(text, P), 1) | random_bf16(mtp_shapes(text), 2)
    inputs = open_inputs(model.base(), "nvfp4", None, None, None)
    plan = plan_objects(inputs.planned, "nvfp4")
    formats = {m.parameter.name: m.format for p in plan.parents for m in p.members}
    assert formats["text/layers/0/mlp/gate"] == "fp8_e4m3fn_row_bf16"
    assert formats["text/layers/0/mlp/down"] == "nvfp4"


def test_the_drafter_must_fit_the_proposal(model):
    config = json.loads(json.dumps(DFLASH2))
    config["dflash_config"]["selector_top_k"] = 1000
    drafter = write_checkpoint(
        model.folder / "drafter", config, random_bf16(dflash2_shapes(DFLASH2), 5)
    )
    refuse(model, "selector_top_k: 1000 is above the 993 proposable tokens", dflash2=drafter)


def test_a_missing_source_and_an_unknown_profile(model):
    with pytest.raises(ArtifactError, match="none: no directory"):
        model.convert(model.folder / "none")
    with pytest.raises(ArtifactError, match="profile 'q4', expected one of nvfp4"):
        model.convert(model.folder, "q4")


def test_an_existing_artifact_is_not_overwritten(model):
    base = model.base()
    model.convert(base)
    with pytest.raises(ArtifactError, match="not overwritten"):
        model.convert(base)


def test_the_identity_follows_the_inputs(model):
    """An interrupted conversion may build on what was written from the same files only."""
    base = model.base()

    def identity(profile="nvfp4"):
        inputs = open_inputs(base, profile, None, None, None)
        return _identity(inputs, plan_objects(inputs.planned, profile), None)

    first = identity()
    assert identity() == first
    (base / "chat_template.jinja").write_bytes(b"other")
    second = identity()
    assert second != first
    model.tensors["mtp.norm.weight"] += np.ones((), ml_dtypes.bfloat16)
    write_checkpoint(model.folder / "again" / "base", CONFIG, model.tensors)
    (model.folder / "again" / "base" / "model.safetensors").rename(base / "model.safetensors")
    assert identity() != second
