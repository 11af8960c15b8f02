"""The safetensors reader against good and bad files, the writer against a second reader."""

from __future__ import annotations

import json
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.checkpoint.safetensors import (
    ARRAY_TYPES,
    Safetensors,
    SafetensorsFile,
    StreamedTensor,
    write_safetensors,
)
from ninfer_jax.errors import ArtifactError


def write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize("dtype", ARRAY_TYPES, ids=str)
def test_every_type_is_read_as_it_was_written(tmp_path, dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    write_safetensors(tmp_path / "x", {"a": np.ones(3, np.uint8), "b": values})
    file = SafetensorsFile(tmp_path / "x")
    assert file.entries["b"].dtype == ARRAY_TYPES[dtype] and file.entries["b"].shape == (2, 3)
    assert file.words("b").tobytes() == values.tobytes()
    assert file.words("b").shape == (2, 3)
    header = json.loads((tmp_path / "x").read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert list(header) == ["__metadata__", "a", "b"]


def test_words_of_types_that_numpy_lacks(tmp_path):
    values = np.array([1.0, -0.0, np.nan], ml_dtypes.bfloat16)
    codes = np.array([0x7F, 0x80], np.uint8).view(ml_dtypes.float8_e4m3fn)
    write_safetensors(tmp_path / "x", {"a": values, "b": codes, "none": np.zeros((0, 4))})
    file = SafetensorsFile(tmp_path / "x")
    assert file.words("a").tolist() == [0x3F80, 0x8000, 0x7FC0]
    assert file.words("b").tolist() == [0x7F, 0x80]
    assert file.words("none").shape == (0, 4)


def test_streamed_tensors_are_asked_for_in_turn(tmp_path):
    asked = []

    def chunks(name):
        asked.append(name)
        yield b"\1\2"
        yield np.array([3], np.uint8)

    streamed = {name: StreamedTensor("U8", (3,), lambda name=name: chunks(name)) for name in "ab"}
    write_safetensors(tmp_path / "x", streamed)
    assert asked == ["a", "b"]
    assert SafetensorsFile(tmp_path / "x").words("b").tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="a: 3 bytes produced, expected 16"):
        write_safetensors(tmp_path / "y", {"a": StreamedTensor("F32", (4,), lambda: chunks("a"))})


def test_other_types_are_refused(tmp_path):
    with pytest.raises(ValueError, match="x is complex64, expected one of bool, bfloat16"):
        write_safetensors(tmp_path / "x", {"x": np.zeros(3, np.complex64)})


@pytest.mark.parametrize(
    ("header", "length", "message"),
    [
        ({}, 1 << 63, "the header has 9223372036854775808 bytes, but 6 follow"),
        ({}, 7, "the header has 7 bytes, but 6 follow"),
        (b"{]", None, "header: not JSON"),
        (b"[]", None, "the header is no JSON object"),
        (b'{"a":1,"a":2}', None, "duplicate member 'a'"),
        ({"a": 3}, None, "tensor 'a': expected an object with dtype, shape and data_offsets"),
        ({"a": {"dtype": "U8"}}, None, "tensor 'a': expected an object with dtype"),
        ({"a": tensor("F4")}, None, "tensor 'a': dtype 'F4', expected one of BOOL, U8"),
        ({"a": tensor(["U8"])}, None, "tensor 'a': dtype"),
        ({"a": tensor(shape=(-4,))}, None, "tensor 'a': shape [-4] is no list"),
        ({"a": tensor(shape=(True,))}, None, "tensor 'a': shape [True] is no list"),
        ({"a": tensor(shape=[1] * 17)}, None, "is no list of up to 16 axes"),
        ({"a": tensor(offsets=(0, 4, 4))}, None, "data_offsets [0, 4, 4], expected [begin, end]"),
        ({"a": tensor(offsets=(4, 0))}, None, "data_offsets [4, 0], but the file holds 4 bytes"),
        ({"a": tensor(offsets=(1, 5))}, None, "data_offsets [1, 5], but the file holds 4 bytes"),
        ({"a": tensor("F32")}, None, "tensor 'a': 4 bytes, but F32 [4] takes 16"),
        ({"a": tensor(shape=[1 << 62] * 3)}, None, "tensor 'a': 4 bytes, but U8"),
        (
            {"a": tensor(shape=(3,), offsets=(0, 3)), "b": tensor(shape=(2,), offsets=(2, 4))},
            None,
            "tensor 'b': begins at 2, before the end 3 of 'a'",
        ),
    ],
)
def test_malformed_files_are_named(tmp_path, header, length, message):
    path = write(tmp_path / "bad.safetensors", header, b"abcd", length)
    tracemalloc.start()
    with pytest.raises(ArtifactError) as caught:
        SafetensorsFile(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert message in caught.value.message
    assert caught.value.message.startswith("bad.safetensors")


def test_short_and_missing_files(tmp_path):
    (tmp_path / "short").write_bytes(b"1234")
    with pytest.raises(ArtifactError, match="short: 4 bytes, a safetensors file has 8 or more"):
        SafetensorsFile(tmp_path / "short")
    with pytest.raises(ArtifactError, match="none: cannot be read: No such file"):
        SafetensorsFile(tmp_path / "none")


def shards(folder, weight_map):
    for index, name in enumerate("ab"):
        write_safetensors(folder / f"{name}.safetensors", {name: np.array([index], np.int64)})
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def test_shards_are_one_checkpoint(tmp_path):
    tensors = Safetensors(shards(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"}))
    assert [tensors.words(name).tolist() for name in "ab"] == [[0], [1]]
    assert len(tensors.files) == 2 and "c" not in tensors


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "c.safetensors"}, "shard 'c.safetensors' is missing"),
        ({"b": "a.safetensors"}, "a.safetensors: tensor 'b' is missing"),
        ({"a": "../a.safetensors"}, "'../a.safetensors' is no file name"),
        ({"a": 3}, "'3' is no file name"),
        ([], "missing member 'weight_map'"),
    ],
)
def test_bad_indexes_are_named(tmp_path, weight_map, message):
    with pytest.raises(ArtifactError, match=message.replace(".", r"\.")):
        Safetensors(shards(tmp_path, weight_map))


def test_a_directory_without_or_with_several_files(tmp_path):
    with pytest.raises(ArtifactError, match="0 safetensors files, expected"):
        Safetensors(tmp_path)
    for name in ("x", "y"):
        write_safetensors(tmp_path / f"{name}.safetensors", {name: np.zeros(1)})
    with pytest.raises(ArtifactError, match="2 safetensors files"):
        Safetensors(tmp_path)


def test_tensors_are_asked_for_by_type_and_shape(tmp_path):
    write_safetensors(tmp_path / "x", {"a": np.zeros((2, 3), np.float32)})
    tensors = Safetensors(tmp_path / "x")
    assert tensors.entry("a", ("BF16", "F32"), [(2, 3)]).shape == (2, 3)
    with pytest.raises(ArtifactError, match="x: tensor 'b' is missing"):
        tensors.entry("b", ("F32",), [(2, 3)])
    with pytest.raises(ArtifactError, match="x: tensor 'a' is F32, expected BF16 or U8"):
        tensors.entry("a", ("BF16", "U8"), [(2, 3)])
    with pytest.raises(ArtifactError, match=r"has shape \[2, 3\], expected \[3\] or \[3, 1\]"):
        tensors.entry("a", ("F32",), [(3,), (3, 1)])
