"""Writing: published vectors, splitting, atomic publication, refusals."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from ninfer_jax.artifact import (
    Binding,
    Component,
    FileEntry,
    TensorToWrite,
    open_artifact,
    write_artifact,
)
from ninfer_jax.artifact.reader import open_container
from ninfer_jax.artifact.writer import DEFAULT_FILE_LIMIT, split_payload
from ninfer_jax.errors import ArtifactError


def digests(paths):
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def test_the_published_single_file(minis, tmp_path):
    files = minis.write_vector(tmp_path / "mini.ninfer", DEFAULT_FILE_LIMIT)
    assert digests(files) == ["5a5813adb89342f6a69733e72a0e9bfec3f30ecb9a8f0d8c2ffdc256abbf7115"]


def test_the_published_split_files(minis, tmp_path):
    files = minis.write_vector(tmp_path / "mini.ninfer", 8192)
    assert [path.name for path in files] == ["mini.ninfer", "mini.ninfer.part-0001"]
    assert digests(files) == [
        "7a8ad230977c92048702c066eef9e595f621f95eac91e3128771952ee8d24ace",
        "ef67a185038accac3a94e9a9a60b5b8fb2a81cc0142c2a57df1045750e0466ae",
    ]
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_the_splitting_rule():
    whole = split_payload(1000, 65536, "m", DEFAULT_FILE_LIMIT)
    assert whole == (FileEntry(None, 1000),)
    files = split_payload(70_000_000_000, 65536, "m", DEFAULT_FILE_LIMIT)
    assert files[0].payload_bytes == 31_999_934_464
    assert [entry.path for entry in files] == [None, "m.part-0001", "m.part-0002"]
    assert sum(entry.payload_bytes for entry in files) == 70_000_000_000
    assert all(entry.payload_bytes % 4096 == 0 for entry in files[:-1])
    with pytest.raises(ArtifactError, match="a limit of 8191 bytes a file leaves no room"):
        split_payload(5000, 4096, "m", 8191)


def write_blocks(path, count=40, file_limit=DEFAULT_FILE_LIMIT, **changes):
    settings = {
        "components": {"text": Component({})},
        "tensors": [
            TensorToWrite(f"weight/{index:06d}", "int32", (300 + index,), numbered(index))
            for index in range(count)
        ],
        "resources": {"r": b"resource"},
        "bindings": {
            f"text/{index}": Binding(object=f"weight/{index:06d}") for index in range(count)
        },
        "file_limit": file_limit,
    }
    return write_artifact(path, **(settings | changes))


def numbered(index):
    return lambda: np.arange(index, 300 + 2 * index, dtype="<i4")


@pytest.mark.parametrize("pages", [4, 5, 7, 11])
def test_split_files_read_back_whatever_the_limit(tmp_path, pages):
    files = write_blocks(tmp_path / "a.ninfer", file_limit=pages * 4096)
    assert len(files) > 1 and all(path.stat().st_size <= pages * 4096 for path in files)
    with open_artifact(files[0]) as artifact:
        assert artifact.size_bytes == sum(path.stat().st_size for path in files)
        for index in range(40):
            words = artifact.parameter(f"text/{index}", (300 + index,)).decode()
            assert words.tolist() == list(range(index, 300 + 2 * index))


@pytest.mark.parametrize("names", range(0, 4100, 97))
def test_directory_and_file_table_settle_at_every_length(tmp_path, names):
    files = write_blocks(tmp_path / "a.ninfer", 3, 8192 + 4096, provenance={"filler": "x" * names})
    container = open_container(files[0])
    assert container.directory.provenance == {"filler": "x" * names}


def test_existing_files_are_never_replaced(minis, tmp_path):
    part = tmp_path / "mini.ninfer.part-0001"
    part.write_bytes(b"precious")
    with pytest.raises(ArtifactError, match=r"mini.ninfer.part-0001: exists already"):
        minis.write_vector(tmp_path / "mini.ninfer", 8192)
    assert part.read_bytes() == b"precious" and list(tmp_path.iterdir()) == [part]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "a.ninfer"

    def late():
        path.write_bytes(b"precious")
        return b"\0" * 8

    with pytest.raises(ArtifactError, match="exists already"):
        write_blocks(path, 0, tensors=[TensorToWrite("w", "fp32", (2,), late)], bindings={})
    assert path.read_bytes() == b"precious" and list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_a_failed_write(tmp_path):
    def fail():
        raise RuntimeError("source went away")

    tensors = [TensorToWrite("w", "fp32", (2048,), fail)]
    with pytest.raises(RuntimeError, match="went away"):
        write_blocks(tmp_path / "a.ninfer", 0, tensors=tensors, bindings={})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tensors": [TensorToWrite("w", "fp32", (2,), b"123")], "bindings": {}},
            "object 'w': 3 bytes produced, expected 8",
        ),
        (
            {"tensors": [TensorToWrite("w", "fp32", (2,), b"1" * 8)] * 2, "bindings": {}},
            "object 'w': written twice",
        ),
        (
            {"tensors": [TensorToWrite("w", "nvfp4", (2, 64), b"")], "bindings": {}},
            "object 'w': nvfp4: shape .* multiples of 128",
        ),
        ({"resources": {"r": b""}}, "bytes: 0 is outside 1"),
        ({"bindings": {"text/x": Binding(object="nothing")}}, "binding 'text/x': no object"),
        ({"components": {}}, "components: missing 'text'"),
        ({"file_limit": 4096}, "leaves no room for payload"),
    ],
)
def test_what_the_writer_refuses(tmp_path, changes, message):
    with pytest.raises(ArtifactError, match=message):
        write_blocks(tmp_path / "a.ninfer", **changes)
    assert not list(tmp_path.iterdir())


def test_identities_are_drawn_at_random_unless_given(tmp_path):
    first, second = (open_artifact(write_blocks(tmp_path / name)[0]) for name in ("a", "b"))
    assert first.artifact_id != second.artifact_id and len(first.artifact_id) == 32


def test_text_of_any_language_survives(tmp_path):
    files = write_blocks(tmp_path / "a", 1, metadata={"name": "千问", "list": [1, 2.5, None, True]})
    artifact = open_artifact(files[0])
    assert artifact.name == "千问" and artifact.metadata["list"] == [1, 2.5, None, True]
    assert json.dumps(artifact.provenance) == "null"
