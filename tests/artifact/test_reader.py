"""Opening the published vectors, and resolving parameters of every shape of binding."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ninfer_jax.artifact import (
    Binding,
    Component,
    Part,
    TensorToWrite,
    Use,
    decode_fields,
    encode_fp8_rows,
    encode_grouped,
    encode_nvfp4,
    open_artifact,
    pack_object,
    write_artifact,
)
from ninfer_jax.artifact.framing import PAGE
from ninfer_jax.artifact.reader import open_container
from ninfer_jax.errors import ArtifactError


@pytest.mark.parametrize(
    ("version", "json_bytes", "size", "digest"),
    [
        (1, 382, 4868, "794da75e9a66f9f48c942cba6fb25d4cb8f9d8288938746ef7cbf334786ca349"),
        (2, 423, 4868, "faa201bc2497a43f7be29b2444ced868c294fd51f6f74c1962faeb277840236b"),
        (3, 690, 8448, "5a5813adb89342f6a69733e72a0e9bfec3f30ecb9a8f0d8c2ffdc256abbf7115"),
    ],
)
def test_published_vectors_open(minis, version, json_bytes, size, digest):
    content = minis.entry(version)
    assert hashlib.sha256(content).hexdigest() == digest and len(content) == size
    container = open_container(minis.write(content))
    assert container.header.version == version
    assert container.header.json_bytes == json_bytes
    assert container.header.payload_start == PAGE
    assert container.size_bytes == size


def test_legacy_objects_get_version_3_spellings(minis):
    objects = open_container(minis.write_version(2)).directory.objects
    assert list(objects) == ["frontend/tokenizer.json", "direct/bf16", "quant/q4"]
    assert objects["quant/q4"].format == "q4_g64_fp16"
    assert objects["quant/q4"].layout == "row_split_k128_v1"


def test_trailing_bytes_are_legal_before_version_3(minis):
    path = minis.write(minis.entry(1) + b"anything")
    assert open_container(path).size_bytes == 4868 + 8


def test_members_of_an_artifact(minis):
    artifact = open_artifact(minis.write_version(3))
    assert (artifact.version, artifact.name, artifact.size_bytes) == (3, "mini", 8448)
    assert artifact.artifact_id == "000102030405060708090a0b0c0d0e0f"
    assert artifact.components["text"].config == {"architectures": ["Qwen3_5ForCausalLM"]}
    assert artifact.components["text"].proposal is None
    assert artifact.resource("text", "tokenizer.json") == b"{}"
    assert artifact.object_words("weight/000000") == np.arange(2048, dtype="<u2").tobytes()
    assert artifact.use("text/b", "text/in").activation_policy == "A16Only"
    assert artifact.use("text/a", "text/in") is None
    assert artifact.provenance == {} and artifact.path.name == "mini.ninfer"


def test_parameters_of_a_shared_parent(minis):
    artifact = open_artifact(minis.write_version(3))
    second = artifact.parameter("text/b")
    assert (second.name, second.format, second.shape) == ("text/b", "bf16", (1024,))
    assert second.words()["words"].tolist() == list(range(1024, 2048))
    square = artifact.parameter("text/a", (32, 32))
    assert square.decode().shape == (32, 32) and square.decode().dtype == np.float32
    with pytest.raises(ArtifactError, match=r"mini.ninfer: parameter 'text/c' is missing"):
        artifact.parameter("text/c")
    with pytest.raises(ArtifactError, match=r"hold 1024 elements, expected 1023 for .*\[1023\]"):
        artifact.parameter("text/a", (1023,))
    with pytest.raises(ArtifactError, match=r"mini.ninfer: no object 'weight/1'"):
        artifact.object_words("weight/1")


def test_words_are_writable_copies_that_outlive_the_artifact(minis):
    with open_artifact(minis.write_version(3)) as artifact:
        words = artifact.parameter("text/a").words()["words"]
        view = artifact.object_words("weight/000000")
    words[0] = 9
    assert view[:2] == b"\0\0" and view.readonly


def test_a_tensor_may_straddle_files(minis):
    entry, part = minis.write_split()
    artifact = open_artifact(entry)
    assert artifact.size_bytes == 8192 + 4352
    assert artifact.parameter("text/b").words()["words"].tolist() == list(range(1024, 2048))
    assert hashlib.sha256(part.read_bytes()).hexdigest() == (
        "ef67a185038accac3a94e9a9a60b5b8fb2a81cc0142c2a57df1045750e0466ae"
    )


def test_parts_are_opened_when_first_touched(minis):
    entry, part = minis.write_split()
    part.unlink()
    artifact = open_artifact(entry)
    assert artifact.resource("text", "tokenizer.json") == b"{}"
    with pytest.raises(ArtifactError, match=r"part file 'mini.ninfer.part-0001': cannot open"):
        artifact.parameter("text/b").words()
    with pytest.raises(ArtifactError, match="cannot open"):
        artifact.open_all_files()


def test_parts_are_found_beside_the_name_that_was_opened(minis, tmp_path):
    entry, part = minis.write_split()
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in (entry, part):
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    assert open_artifact(entry).parameter("text/b").decode().shape == (1024,)


def test_a_file_that_shrinks_is_a_short_read(minis):
    path = minis.write_version(3)
    artifact = open_artifact(path)
    with open(path, "r+b") as file:
        file.truncate(5000)
    with pytest.raises(ArtifactError, match=r"short read at 4352: wanted 4096 bytes, got 648"):
        artifact.parameter("text/a").words()


def write_tensors(path, tensors, bindings, uses=()):
    write_artifact(
        path,
        components={"text": Component({})},
        tensors=tensors,
        resources={},
        bindings=bindings,
        uses=uses,
    )
    return open_artifact(path)


def tensor(id: str, format: str, fields: dict, shape: tuple[int, ...]) -> TensorToWrite:
    return TensorToWrite(id, format, shape, pack_object(format, fields, shape))


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def encoded(format: str, values: np.ndarray) -> dict[str, np.ndarray]:
    if format == "nvfp4":
        return dict(zip(("codes", "scales", "divisor"), encode_nvfp4(values), strict=True))
    if format.startswith("fp8"):
        return dict(zip(("codes", "scales"), encode_fp8_rows(values), strict=True))
    return dict(zip(("codes", "scales"), encode_grouped(values, format), strict=True))


@pytest.mark.parametrize(
    "format",
    ["nvfp4", "fp8_e4m3fn_row_bf16", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"],
)
def test_row_ranges_of_packed_parents(tmp_path, format):
    first, second = matrix(256, 64), matrix(128, 64, seed=1)
    second.flat[0] = np.abs(first).max() * np.sign(second.flat[0])
    second = np.clip(second, -np.abs(first).max(), np.abs(first).max())
    fields = [encoded(format, first), encoded(format, second)]
    artifact = write_tensors(
        tmp_path / "a.ninfer",
        [tensor("0", format, fields[0], (256, 64)), tensor("1", format, fields[1], (128, 64))],
        {
            "whole": Binding(object="0"),
            "middle": Binding(parts=(Part("0", 100 * 64, 140 * 64),)),
            "joined": Binding(parts=(Part("0", 250 * 64, 256 * 64), Part("1", 0, 3 * 64))),
            "ragged": Binding(parts=(Part("0", 32, 96),)),
        },
    )
    decoded = decode_fields(format, fields[0])
    assert np.array_equal(artifact.parameter("whole", (256, 64)).decode(), decoded)
    middle = artifact.parameter("middle")
    assert middle.shape == (40, 64)
    assert np.array_equal(middle.decode(), decoded[100:140])
    joined = artifact.parameter("joined", (9, 64))
    expected = np.concatenate([decoded[250:], decode_fields(format, fields[1])[:3]])
    assert np.array_equal(joined.decode(), expected)
    assert joined.words()["codes"].shape[0] == 9
    with pytest.raises(ArtifactError, match="does not begin and end at rows of 64 columns"):
        artifact.parameter("ragged", (1, 64))
    with pytest.raises(ArtifactError, match="not made of rows of 64 columns"):
        artifact.parameter("middle", (20, 128))
    with pytest.raises(ArtifactError, match=r"has shape \[256, 64\], expected \[64, 256\]"):
        artifact.parameter("whole", (64, 256))


def test_parts_of_nvfp4_need_one_divisor(tmp_path):
    artifact = write_tensors(
        tmp_path / "a.ninfer",
        [
            tensor("0", "nvfp4", encoded("nvfp4", matrix(128, 64)), (128, 64)),
            tensor("1", "nvfp4", encoded("nvfp4", matrix(128, 64) * 3), (128, 64)),
        ],
        {"w": Binding(parts=(Part("0", 0, 64), Part("1", 0, 64)))},
    )
    with pytest.raises(ArtifactError, match="parameter 'w': nvfp4: rows with different divisors"):
        artifact.parameter("w", (2, 64)).words()


def test_parts_of_direct_formats_may_be_any_elements(tmp_path):
    words = np.arange(24, dtype="<i4")
    artifact = write_tensors(
        tmp_path / "a.ninfer",
        [
            TensorToWrite("0", "int32", (4, 6), words.tobytes()),
            TensorToWrite("1", "fp32", (), np.float32(0.5).tobytes()),
            TensorToWrite("2", "fp32", (3,), np.arange(3, dtype="<f4").tobytes()),
        ],
        {
            "mixed": Binding(parts=(Part("0", 5, 7), Part("0", 20, 24))),
            "rows": Binding(parts=(Part("0", 6, 18),)),
            "again": Binding(parts=(Part("0", 0, 24), Part("0", 0, 24))),
            "clash": Binding(parts=(Part("0", 0, 1), Part("2", 0, 1))),
            "scalar": Binding(object="1"),
        },
        [Use("rows", "x", "A16Only", {"activation_input_divisor": Binding(object="1")})],
    )
    assert artifact.parameter("mixed", (2, 3)).decode().tolist() == [[5, 6, 20], [21, 22, 23]]
    assert artifact.parameter("mixed").shape == (6,)
    assert artifact.parameter("rows").decode().tolist() == words.reshape(4, 6)[1:3].tolist()
    assert artifact.parameter("scalar", ()).decode() == np.float32(0.5)
    assert artifact.parameter("again", (48,)).decode().shape == (48,)
    with pytest.raises(ArtifactError, match="hold 48 elements of 24 stored ones"):
        artifact.parameter("again")
    with pytest.raises(ArtifactError, match="parts of different formats fp32, int32"):
        artifact.parameter("clash", (2,))
    use = artifact.use("rows", "x")
    assert artifact.auxiliary(use, "activation_input_divisor", ()).decode() == np.float32(0.5)
    assert artifact.auxiliary(use, "input_columns") is None
