"""An export and its import give back every payload byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ninfer_jax.artifact import (
    Artifact,
    Binding,
    Component,
    TensorToWrite,
    open_artifact,
    pack_object,
    write_artifact,
)
from ninfer_jax.artifact.grouped import GROUPED
from ninfer_jax.artifact.synthetic import write_synthetic
from ninfer_jax.checkpoint.from_huggingface import convert_checkpoint
from ninfer_jax.checkpoint.packed_integers import (
    pack_integers,
    packed_columns,
    unpack_integers,
)
from ninfer_jax.checkpoint.safetensors import Safetensors
from ninfer_jax.checkpoint.to_compressed_tensors import _field, export_compressed_tensors
from ninfer_jax.errors import ArtifactError
from tests.checkpoint.building import (
    DEMO,
    tiny_base,
    tiny_dflash2,
    tiny_frequencies,
    tiny_quantised,
)


def convert(source: Path, destination: Path, profile: str, **given: Path) -> Path:
    options = {"base": None, "dflash2": None, "frequencies": None} | given
    return convert_checkpoint(
        source,
        destination,
        profile=profile,
        file_limit=1 << 40,
        progress=lambda name, count: None,
        **options,
    )[0]


def assert_same_payloads(first: Artifact, second: Artifact) -> None:
    """Every object, found through the parameters it holds, has the same bytes in both."""
    assert first.bindings.keys() == second.bindings.keys()
    pairs = {}
    for name in first.bindings:
        one, two = first.parameter(name), second.parameter(name)
        assert (one.format, one.shape) == (two.format, two.shape), name
        for a, b in zip(one.pieces, two.pieces, strict=True):
            assert (a.begin, a.end) == (b.begin, b.end), name
            pairs[a.parent.id] = b.parent.id
    for use in first.uses:
        other = second.use(use.parameter, use.input)
        for role, binding in use.auxiliaries.items():
            pairs[binding.object] = other.auxiliaries[role].object
    for name, component in first.components.items():
        other = second.components[name]
        assert (component.config, component.proposal) == (other.config, other.proposal)
        pairs |= {id: other.resources[role] for role, id in component.resources.items()}
    assert pairs.keys() == first.objects.keys() and len(set(pairs.values())) == len(second.objects)
    for one, two in pairs.items():
        assert first.object_words(one) == second.object_words(two), (one, two)


def test_the_demo_survives(tmp_path):
    with open_artifact(DEMO) as demo:
        export_compressed_tensors(demo, tmp_path / "model")
        drafter = tmp_path / "model" / "dflash2"
        path = convert(tmp_path / "model", tmp_path / "back.ninfer", "nvfp4", dflash2=drafter)
        with open_artifact(path) as back:
            assert_same_payloads(demo, back)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return {
        "base": tiny_base(folder / "base"),
        "quantised": tiny_quantised(folder / "quantised"),
        "dflash2": tiny_dflash2(folder / "dflash2"),
        "frequencies": tiny_frequencies(folder / "ranking.bin"),
    }


@pytest.mark.parametrize(
    ("source", "profile"),
    [("quantised", "nvfp4"), ("base", "nvfp4"), ("base", "groupwise-int")],
)
def test_every_component_survives_in_both_profiles(sources, tmp_path, source, profile):
    path = convert(
        sources[source],
        tmp_path / "first.ninfer",
        profile,
        base=sources["base"],
        dflash2=sources["dflash2"],
        frequencies=sources["frequencies"],
    )
    with open_artifact(path) as first:
        export_compressed_tensors(first, tmp_path / "model")
        drafter = tmp_path / "model" / "dflash2"
        path = convert(tmp_path / "model", tmp_path / "second.ninfer", profile, dflash2=drafter)
        with open_artifact(path) as second:
            assert_same_payloads(first, second)
            # Not only the payloads: a converted artifact is in native order already.
            assert first.objects == second.objects
            assert first.bindings == second.bindings and first.uses == second.uses


def test_modules_are_listed_by_scheme(sources, tmp_path):
    path = convert(sources["quantised"], tmp_path / "a.ninfer", "nvfp4", base=sources["base"])
    with open_artifact(path) as artifact:
        export_compressed_tensors(artifact, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    quantization = config["quantization_config"]
    assert quantization["quant_method"] == "compressed-tensors"
    assert quantization["format"] == "mixed-precision"
    four, eight, *integers = quantization["config_groups"].values()
    layer = "model.language_model.layers.0."
    assert four["targets"][:2] == [f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj"]
    assert len(four["targets"]) == 3 * 7 and four["input_activations"]["dynamic"] == "local"
    # lm_head, embedding, 3 of the last MLP, 4 x 2 attention, 3 x 6 DeltaNet
    assert len(eight["targets"]) == 1 + 1 + 3 + 4 * 2 + 3 * 6
    assert f"{layer}linear_attn.in_proj_a" in quantization["ignore"]
    widths = {group["weights"]["num_bits"]: group["targets"] for group in integers}
    assert set(widths) == {4, 5, 6, 8}
    assert "mtp.fc" in widths[8] and "model.visual.patch_embed.proj" in widths[6]
    tensors = Safetensors(tmp_path / "model")
    for group in (four, eight):
        for module in group["targets"]:
            kind = "weight_packed" if group is four else "weight"
            assert f"{module}.{kind}" in tensors and f"{module}.weight_scale" in tensors


def test_a_folder_with_a_checkpoint_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with open_artifact(DEMO) as demo, pytest.raises(ArtifactError, match="not overwritten"):
        export_compressed_tensors(demo, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_resources_cannot_leave_the_folder(tmp_path):
    with open_artifact(DEMO) as demo:
        text = demo.components["text"]
        id = text.resources["tokenizer.json"]
        demo.components["text"] = Component(text.config, None, {"../escape.json": id})
        with pytest.raises(ArtifactError, match="has no place in a checkpoint"):
            export_compressed_tensors(demo, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"])
@pytest.mark.parametrize("columns", [1, 5, 64, 130])
def test_packed_integers_bit_by_bit(format, columns):
    constants = GROUPED[format]
    random = np.random.default_rng(columns)
    codes = random.integers(constants.minimum, constants.maximum + 1, (3, columns)).astype(np.int8)
    words = pack_integers(format, codes)
    assert words.shape == (3, packed_columns(format, columns)) and words.dtype == np.int32
    each = 32 // constants.bits
    for row, column in np.ndindex(codes.shape):
        word = int(words[row, column // each]) & 0xFFFFFFFF
        code = word >> constants.bits * (column % each) & (1 << constants.bits) - 1
        assert code - (1 << constants.bits - 1) == codes[row, column]
    np.testing.assert_array_equal(unpack_integers(format, words, columns), codes)


def test_worked_example_of_packing():
    codes = np.array([[-8, -7, 7]], np.int8)
    # The five lanes without a code are zero.
    assert pack_integers("q4_g64_fp16", codes).tolist() == [[0xF10]]


def test_arbitrary_integer_words_survive(tmp_path):
    """Words that no encoder gives, in every component of the nvfp4 profile."""
    geometry = json.dumps({"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}).encode()
    vocabulary = {str(token): token for token in range(289)}
    resources = {
        "tokenizer.json": json.dumps({"model": {"vocab": vocabulary}}).encode(),
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"x",
        "generation_config.json": b"{}",
        "preprocessor_config.json": geometry,
        "video_preprocessor_config.json": geometry,
    }
    path = write_synthetic(
        tmp_path / "first.ninfer", resources, profile="nvfp4", model_id="ninfer-tiny", seed=1
    )[0]
    with open_artifact(path) as first:
        export_compressed_tensors(first, tmp_path / "model")
        drafter = tmp_path / "model" / "dflash2"
        path = convert(tmp_path / "model", tmp_path / "second.ninfer", "nvfp4", dflash2=drafter)
        with open_artifact(path) as second:
            assert_same_payloads(first, second)
            assert first.objects == second.objects and first.uses == second.uses


def test_words_that_values_would_lose_are_refused(tmp_path):
    """The code -8 is legal, but the encoder would give the group another scale."""
    codes = np.full((1, 64), -8, np.int8)
    scales = np.array([[0x3C00]], np.uint16)
    payload = pack_object("q4_g64_fp16", {"codes": codes, "scales": scales}, (1, 64))
    path = write_artifact(
        tmp_path / "a.ninfer",
        components={"text": Component({})},
        tensors=[TensorToWrite("w", "q4_g64_fp16", (1, 64), payload)],
        resources={},
        bindings={"text/w": Binding(object="w")},
    )[0]
    with (
        open_artifact(path) as artifact,
        pytest.raises(ArtifactError, match="q4_g64_fp16 words are not those the encoder gives"),
    ):
        _field(artifact.parameter("text/w"), "values")
