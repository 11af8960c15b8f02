"""Artifacts of random words: legal, sane, reproducible, and of exactly the published size."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from ninfer_jax.artifact import open_artifact, pack_object
from ninfer_jax.artifact.codecs import check_fields, decode_fields, encoded_bytes, unpack_object
from ninfer_jax.artifact.config_rules import check_dflash2_config, check_text_config
from ninfer_jax.artifact.directory import TensorObject
from ninfer_jax.artifact.framing import payload_start
from ninfer_jax.artifact.geometry import QWEN_27B, TINY, with_layers
from ninfer_jax.artifact.inventory import legacy_text
from ninfer_jax.artifact.legacy_writer import write_legacy
from ninfer_jax.artifact.parameters import COMPONENTS, PROFILES, model_parameters
from ninfer_jax.artifact.published import PUBLISHED
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.artifact.synthetic import (
    object_chunks,
    plan_synthetic,
    source_of_words,
    write_synthetic,
)
from ninfer_jax.artifact.synthetic_words import SyntheticWords
from ninfer_jax.artifact.token_ids import check_token_ids
from ninfer_jax.artifact.verify import verify_artifact
from ninfer_jax.errors import ArtifactError
from ninfer_jax.text.template import ChatTemplate
from ninfer_jax.text.tokenizer import Tokenizer
from tools.make_synthetic_artifact import main, published_resource_sizes
from tools.synthetic_resources import full_resources, padded, tiny_resources

FEATURES = ("vision", "mtp", "dflash2", "proposal")
KINDS = [("nvfp4", 3), ("nvfp4", 2), ("groupwise-int", 3), ("groupwise-int", 2)]
KINDS += [("groupwise-int", 1)]
MATRICES = [
    ("nvfp4", (256, 192)),
    ("fp8_e4m3fn_row_bf16", (33, 100)),
    ("q4_g64_fp16", (64, 384)),
    ("q5_g64_fp16", (300, 88)),
    ("q5_g64_fp16", (40, 4304)),
    ("q6_g64_fp16", (64, 1536)),
    ("q8_g32_fp16", (65, 200)),
    ("bf16", (3, 999)),
]

# Their inventory, or the size of their chat template, is not known.
UNKNOWN = [file for file in PUBLISHED if file.model == "Qwen3.6-35B-A3B"] + [
    file
    for file in PUBLISHED
    if file.model == "Qwen3.6-27B" and (file.profile == "nvfp4" or file.container == 3)
]


@pytest.fixture(scope="module")
def resources():
    return tiny_resources()


def write_tiny(path, resources, profile="nvfp4", **options):
    return write_synthetic(path, resources, profile=profile, model_id="ninfer-tiny", **options)


@pytest.mark.parametrize(("format", "shape"), MATRICES)
def test_words_are_legal_canonical_and_of_the_promised_spread(format, shape):
    chunks = list(SyntheticWords(1, 289, 257).chunks("text/layers/0/mlp/down", format, shape))
    payload = b"".join(chunk.tobytes() for chunk in chunks)
    assert len(payload) == encoded_bytes(format, shape)
    fields = unpack_object(format, shape, payload)
    check_fields(format, fields, "matrix")
    # Packing what was unpacked gives every byte again: gaps and padding are zero.
    assert pack_object(format, fields, shape) == payload
    values = decode_fields(format, fields) * math.sqrt(shape[1])
    assert abs(values.std() - 1) < 0.08 and abs(values.mean()) < 0.05


@pytest.mark.parametrize(
    ("format", "largest"),
    [("q4_g64_fp16", 7), ("q5_g64_fp16", 15), ("q6_g64_fp16", 31), ("q8_g32_fp16", 127)],
)
def test_grouped_codes_are_symmetric_and_their_scales_positive(format, largest):
    payload = b"".join(SyntheticWords(2, 9, 257).chunks("a", format, (512, 128)))
    fields = unpack_object(format, (512, 128), payload)
    assert (fields["codes"].min(), fields["codes"].max()) == (-largest, largest)
    assert fields["scales"].min() > 0


def test_small_tensors_follow_their_names():
    words = SyntheticWords(3, 1000, 257)

    def read(name, format, shape):
        payload = b"".join(chunk.tobytes() for chunk in words.chunks(name, format, shape))
        return decode_fields(format, unpack_object(format, shape, payload))

    assert abs(read("text/final_norm", "bf16", (5120,)).mean()) < 0.02
    assert abs(read("text/layers/0/gdn/norm", "bf16", (5120,)).mean() - 1) < 0.02
    assert abs(read("vision/layers/0/norm1_weight", "bf16", (5120,)).mean() - 1) < 0.02
    assert read("vision/layers/0/norm1_bias", "bf16", (5120,)).std() < 0.03
    decay = np.exp(read("text/layers/0/gdn/a_log", "fp32", (48,)))
    assert decay.min() > 0.19 and decay.max() < 4.21 and decay.std() > 0.5
    token_ids = read("proposal/token_ids", "int32", (700,))
    assert len(set(token_ids.tolist())) == 700 and 0 <= token_ids.min() <= token_ids.max() < 1000
    site = "text/layers/0/mlp/gate_up_projection/input_scale_divisor"
    assert 0 < read(site, "fp32", ()) < 1000
    assert abs(read("text/token_embedding", "fp8_e4m3fn_row_bf16", (320, 128)).std() - 1) < 0.05


@pytest.mark.parametrize("profile", PROFILES)
def test_every_kind_of_object_of_the_27b_is_filled_by_small_chunks(profile):
    """Chunks are views of a block: the 20 GB of the plan are never allocated."""
    plan = plan_synthetic(published_resource_sizes("qwen3.8-27b", 2), profile=profile, container=2)
    words = source_of_words(plan, 0)
    kinds = {
        (stored.format, stored.shape): stored
        for stored in plan.directory.objects.values()
        if isinstance(stored, TensorObject)
    }
    assert len(kinds) >= 40 and max(stored.bytes for stored in kinds.values()) > 1 << 30
    for stored in kinds.values():
        sizes = [chunk.size for chunk in object_chunks(plan, words, {}, stored)]
        assert sum(sizes) == stored.bytes and max(sizes) <= 64 << 20


@pytest.mark.parametrize(("profile", "container"), KINDS)
def test_a_tiny_artifact_passes_every_check(tmp_path, resources, profile, container):
    path = tmp_path / "tiny.ninfer"
    assert write_tiny(path, resources, profile, container=container) == [path]
    assert 200_000 < path.stat().st_size < 2_500_000
    with open_artifact(path) as artifact:
        assert artifact.version == container
        assert check_artifact(artifact, FEATURES) == TINY.public_tokens
        assert list(verify_artifact(artifact)) == []
        for parameter in model_parameters(COMPONENTS, TINY):
            stored = artifact.parameter(parameter.name, parameter.shape)
            assert np.isfinite(stored.decode()).all()


def test_every_container_holds_the_same_words(tmp_path, resources):
    for profile in PROFILES:
        paths = [tmp_path / f"{profile}.{version}" for version in (2, 3)]
        for path, version in zip(paths, (2, 3), strict=True):
            write_tiny(path, resources, profile, container=version)
        with open_artifact(paths[0]) as old, open_artifact(paths[1]) as new:
            for name in old.bindings:
                first, second = old.parameter(name), new.parameter(name)
                assert first.format == second.format
                np.testing.assert_array_equal(first.decode(), second.decode(), err_msg=name)
            for use in old.uses:
                role = "activation_input_divisor"
                first = old.auxiliary(use, role)
                second = new.auxiliary(new.use(use.parameter, use.input), role)
                assert (first is None) == (second is None)
                if first is not None:
                    assert first.decode() == second.decode()


def test_the_same_arguments_give_the_same_bytes(tmp_path, resources):
    paths = [tmp_path / name for name in "abc"]
    for path, seed in zip(paths, (5, 5, 6), strict=True):
        write_tiny(path, resources, seed=seed)
    contents = [path.read_bytes() for path in paths]
    assert contents[0] == contents[1] != contents[2]


def test_a_file_limit_splits(tmp_path, resources):
    files = write_tiny(tmp_path / "tiny.ninfer", resources, file_limit=400_000)
    sizes = {name: len(data) for name, data in resources.items()}
    plan = plan_synthetic(sizes, profile="nvfp4", model_id="ninfer-tiny")
    # Part names are in the directory: `tiny.ninfer` fits the same pages as the planned name.
    assert len(files) > 4 and max(file.stat().st_size for file in files) <= 400_000
    assert [file.stat().st_size for file in files] == plan.file_sizes(400_000)
    with open_artifact(files[0]) as artifact:
        assert list(verify_artifact(artifact)) == []


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7])
def test_fewer_layers_are_a_smaller_model(tmp_path, resources, layers):
    path = tmp_path / "tiny.ninfer"
    write_tiny(path, resources, layers=layers)
    with open_artifact(path) as artifact:
        assert artifact.components["text"].config["num_hidden_layers"] == layers
        check_artifact(artifact, FEATURES)
        assert not any(name.startswith(f"text/layers/{layers}/") for name in artifact.bindings)


@pytest.mark.parametrize("layers", [1, 4, 5, 61, 62, 64])
def test_configs_of_a_shortened_27b(layers):
    geometry = with_layers(QWEN_27B, layers)
    sizes = published_resource_sizes("qwen3.8-27b", 3)
    directory = plan_synthetic(sizes, profile="nvfp4", layers=layers).directory
    text = directory.components["text"].config
    check_text_config(text)
    check_dflash2_config(directory.components["dflash2"].config, text, geometry.public_tokens)
    assert len(directory.components["text"].config["layer_types"]) == layers
    if layers > 61:
        assert geometry == dataclasses.replace(QWEN_27B, layers=layers)


@pytest.mark.parametrize(
    "components",
    [chosen for count in range(5) for chosen in itertools.combinations(FEATURES, count)],
    ids="+".join,
)
def test_any_set_of_components(tmp_path, resources, components):
    path = tmp_path / "tiny.ninfer"
    write_tiny(path, resources, "groupwise-int", components=components, layers=4)
    with open_artifact(path) as artifact:
        check_artifact(artifact, components)
        present = {name for name in artifact.components if name != "text"}
        assert present == set(components) - {"proposal"}
        assert (artifact.components["text"].proposal is not None) == ("proposal" in components)


@pytest.mark.parametrize(
    "published",
    [file for file in PUBLISHED if file not in UNKNOWN],
    ids=lambda file: f"{file.size}-v{file.container}",
)
def test_published_sizes(published):
    """Every row whose resource sizes and inventory are known comes out to the byte."""
    model_id = published.model.lower()
    chosen = COMPONENTS if published.has_dflash2 else (*FEATURES[:2], "proposal")
    plan = plan_synthetic(
        published_resource_sizes(model_id, published.container),
        profile=published.profile,
        model_id=model_id,
        components=chosen,
        container=published.container,
        seed=123456789,
    )
    assert plan.file_sizes() == [published.size]
    assert len(plan.directory.objects) == published.objects


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_id": "qwen3.6-27b", "profile": "nvfp4"}, "no inventory of qwen3.6-27b/nvfp4"),
        ({"model_id": "gpt2"}, "no inventory of gpt2/nvfp4, expected one of qwen3.8-27b/nvfp4"),
        ({"components": ("audio",)}, "unknown component 'audio', expected some of text, mtp"),
        ({"layers": 65}, "65 layers, expected 1 to 64"),
        ({"layers": 0}, "0 layers, expected 1 to 64"),
        (
            {"layers": 4, "container": 2},
            "carries no config: 4 layers, expected the whole",
        ),
        ({"components": ("mtp",), "container": 2}, "component 'vision' is missing"),
        ({"container": 1}, "container version 1 has no format for profile nvfp4"),
        ({"container": 4}, "container version 4, expected 1, 2 or 3"),
    ],
)
def test_what_a_plan_refuses(options, message):
    sizes = published_resource_sizes("qwen3.8-27b", 2)
    with pytest.raises(ArtifactError, match=message):
        plan_synthetic(sizes, **({"profile": "nvfp4"} | options))


def test_a_missing_resource_is_named():
    with pytest.raises(ArtifactError, match=r"resource 'tokenizer\.json' is missing or empty"):
        plan_synthetic({}, profile="nvfp4")


def test_resources_serve(resources):
    tokenizer = Tokenizer.from_resources(
        resources["tokenizer.json"], resources["tokenizer_config.json"]
    )
    ids = tokenizer.encode("<|im_start|>hé", allow_special=True)
    assert ids == [257, ord("h"), 0xC3, 0xA9]
    assert ChatTemplate(resources["chat_template.jinja"].decode()) is not None


@pytest.mark.slow
@pytest.mark.parametrize("container", [2, 3])
def test_full_resources_fit_the_published_sizes(tmp_path, container):
    sizes = published_resource_sizes("qwen3.8-27b", container)
    files = padded(full_resources(tmp_path), sizes)
    assert {name: len(data) for name, data in files.items()} == sizes
    texts = files["tokenizer.json"], files["tokenizer_config.json"]
    assert check_token_ids(*texts, QWEN_27B.vocabulary_rows) == QWEN_27B.public_tokens
    ChatTemplate(files["chat_template.jinja"].decode())


def test_padding_of_resources():
    files = {"a.json": b"{}", "t.jinja": b"{{ messages }}"}
    done = padded(files, {"a.json": 10, "t.jinja": 20})
    assert done == {"a.json": b"{}        ", "t.jinja": b"{{ messages }}{#  #}"}
    assert padded(files, {"a.json": 2, "t.jinja": 14}) == files
    for sizes in ({"a.json": 1, "t.jinja": 20}, {"a.json": 2, "t.jinja": 17}):
        with pytest.raises(ArtifactError, match="bytes cannot be padded to"):
            padded(files, sizes)


class TestLegacyWriter:
    """One file of version 1 or 2."""

    def plan(self, resources, container=2):
        sizes = {name: len(data) for name, data in resources.items()}
        return plan_synthetic(
            sizes, profile="groupwise-int", model_id="ninfer-tiny", container=container
        )

    def test_the_directory_is_the_planned_one(self, tmp_path, resources):
        path = tmp_path / "tiny.ninfer"
        write_tiny(path, resources, "groupwise-int", container=1)
        text = legacy_text(self.plan(resources, 1).directory)
        content = path.read_bytes()
        assert content[16 : 16 + len(text)] == text
        assert not any(content[16 + len(text) : payload_start(1, len(text))])

    def test_a_name_that_is_taken(self, tmp_path, resources):
        path = tmp_path / "tiny.ninfer"
        path.write_bytes(b"mine")
        with pytest.raises(ArtifactError, match="exists already and is not overwritten"):
            write_tiny(path, resources, container=2)
        assert path.read_bytes() == b"mine" and list(tmp_path.iterdir()) == [path]

    def test_a_name_that_is_taken_meanwhile(self, tmp_path, resources):
        path = tmp_path / "tiny.ninfer"
        directory = self.plan(resources).directory

        def chunks(stored):
            path.write_bytes(b"theirs")
            yield bytes(stored.bytes)

        with pytest.raises(ArtifactError, match="exists already"):
            write_legacy(path, directory, chunks)
        assert path.read_bytes() == b"theirs" and list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("change", [-1, 1])
    def test_an_object_of_the_wrong_size_leaves_nothing(self, tmp_path, resources, change):
        directory = self.plan(resources).directory

        def chunks(stored):
            yield bytes(stored.bytes + change * isinstance(stored, TensorObject))

        with pytest.raises(ArtifactError, match=r"'text/token_embedding': .* bytes produced"):
            write_legacy(tmp_path / "tiny.ninfer", directory, chunks)
        assert list(tmp_path.iterdir()) == []


def test_the_tool(tmp_path, capsys):
    path = tmp_path / "tiny.ninfer"
    command = [str(path), "--profile", "nvfp4", "--model", "tiny", "--layers", "4"]
    assert main([*command, "--components", "text,mtp"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{path}  {path.stat().st_size:,} bytes\n" and shown.err == ""
    assert main(command) == 1
    assert "exists already" in capsys.readouterr().err
    assert main([*command, "--published-sizes"]) == 1
    assert "no published resource sizes of ninfer-tiny" in capsys.readouterr().err
