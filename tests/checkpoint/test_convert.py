"""Artifact -> Orbax -> artifact: the same bytes; resuming, refusing, serving the same numbers."""

from __future__ import annotations

import hashlib
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.artifact import open_artifact
from ninfer_jax.artifact import staging as staging_module
from ninfer_jax.artifact.directory import directory_document
from ninfer_jax.artifact.requirements import FEATURES, check_artifact
from ninfer_jax.artifact.synthetic import write_synthetic
from ninfer_jax.checkpoint import convert as convert_module
from ninfer_jax.checkpoint import orbax
from ninfer_jax.checkpoint.checkpoint_source import open_checkpoint
from ninfer_jax.checkpoint.convert import (
    artifact_to_checkpoint,
    checkpoint_to_artifact,
    verify_conversion,
)
from ninfer_jax.checkpoint.from_artifact import load_weights
from ninfer_jax.checkpoint.open import open_weights
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.errors import ArtifactError
from ninfer_jax.model.config import text_config
from ninfer_jax.model.decoder import build_decoder
from tests.checkpoint.every_format import write_every_format
from tools.synthetic_resources import tiny_resources

CPU = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])


@pytest.fixture
def small_groups(monkeypatch):
    """Many groups."""
    monkeypatch.setattr(convert_module, "GROUP_BYTES", 40_000)
    monkeypatch.setattr(convert_module, "SAVE_BYTES", 40_000)


@pytest.fixture
def artifact(tmp_path):
    return write_every_format(tmp_path / "every.ninfer")[0]


def same_objects(first, second) -> None:
    with open_weights(first) as one, open_weights(second) as two:
        assert list(one.objects) == list(two.objects)
        for id in one.objects:
            assert bytes(one.object_words(id)) == bytes(two.object_words(id)), id


def test_there_and_back(tmp_path, artifact, small_groups):
    digests = artifact_to_checkpoint(artifact, tmp_path / "orbax")
    expected = hashlib.sha256(artifact.read_bytes()).hexdigest()
    assert digests == {"every.ninfer": expected}
    same_objects(artifact, tmp_path / "orbax")
    files = checkpoint_to_artifact(tmp_path / "orbax", tmp_path / "back.ninfer", file_limit=30_000)
    assert len(files) > 2
    same_objects(artifact, files[0])
    with open_artifact(artifact) as one, open_artifact(files[0]) as two:
        first, second = (directory_document(each.directory) for each in (one, two))
        assert {**first, "files": None} == {**second, "files": None}
        assert one.artifact_id != two.artifact_id
    assert verify_conversion(artifact, tmp_path / "orbax") == len(one.objects)
    assert verify_conversion(tmp_path / "orbax", files[0]) == len(one.objects)
    names = {"every.ninfer", "orbax", *(file.name for file in files)}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_set_of_files_is_hashed_file_by_file(tmp_path, small_groups):
    files = write_every_format(tmp_path / "every.ninfer", file_limit=30_000)
    digests = artifact_to_checkpoint(files[0], tmp_path / "orbax")
    assert digests == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    _, metadata = orbax.read_metadata(tmp_path / "orbax")
    assert metadata["ninfer_sources"] == digests
    same_objects(files[0], tmp_path / "orbax")


def test_the_demo(tmp_path):
    demo = find_artifact("demo")
    artifact_to_checkpoint(demo, tmp_path / "orbax")
    back = checkpoint_to_artifact(tmp_path / "orbax", tmp_path / "back.ninfer")
    same_objects(demo, back[0])


@pytest.mark.parametrize("container", [2, 3])
@pytest.mark.parametrize("profile", ["nvfp4", "groupwise-int"])
def test_the_inventory_of_both_profiles(tmp_path, profile, container):
    """All components of a tiny model with the published inventory."""
    source = write_synthetic(
        tmp_path / "source.ninfer",
        tiny_resources(),
        profile=profile,
        model_id="ninfer-tiny",
        container=container,
    )[0]
    artifact_to_checkpoint(source, tmp_path / "orbax")
    back = checkpoint_to_artifact(tmp_path / "orbax", tmp_path / "back.ninfer")
    same_objects(source, back[0])
    with open_artifact(source) as one, open_artifact(back[0]) as two:
        assert one.bindings == two.bindings and one.uses == two.uses
        assert one.components == two.components
        check_artifact(two, FEATURES)


def test_identity_and_types_are_in_the_metadata(tmp_path, artifact):
    artifact_to_checkpoint(artifact, tmp_path / "orbax")
    leaves, metadata = orbax.read_metadata(tmp_path / "orbax")
    facts = metadata["ninfer"]
    with open_artifact(artifact) as opened:
        assert facts["artifact_id"] == opened.artifact_id
        assert facts["container_version"] == 3 and facts["layout_version"] == 1
        assert facts["converter"].startswith("ninfer_jax ")
        assert facts["directory"] == json.loads(json.dumps(directory_document(opened.directory)))
    types = {name: str(leaf.dtype) for name, leaf in leaves.items()}
    assert types["weight nvfp4/0:codes"] == "uint8"
    assert types["weight nvfp4/0:scales"] == "float8_e4m3fn"
    assert types["weight fp8_e4m3fn_row_bf16/0:codes"] == "float8_e4m3fn"
    assert types["weight fp8_e4m3fn_row_bf16/0:scales"] == "bfloat16"
    assert types["weight q5_g64_fp16/0:scales"] == "float16"
    assert types["resource/ä.json:bytes"] == "uint8"


@pytest.mark.parametrize("sharding", [None, CPU], ids=["host", "device"])
def test_parameters_are_those_of_the_artifact(
    tmp_path, artifact, small_groups, monkeypatch, sharding
):
    # Less than the largest arrays have: they must still arrive.
    monkeypatch.setattr(orbax, "READ_BYTES", 2000)
    artifact_to_checkpoint(artifact, tmp_path / "orbax")
    with open_artifact(artifact) as one, open_checkpoint(tmp_path / "orbax", sharding) as two:
        assert two.resource("text", "x.json") == one.resource("text", "x.json")
        for prepared in (False, True):
            if prepared:
                two.prepare(one.bindings)
            for name in one.bindings:
                first, second = one.parameter(name).words(), two.parameter(name).words()
                assert first.keys() == second.keys()
                for field, values in first.items():
                    found = np.asarray(second[field])
                    assert found.dtype == values.dtype, (name, field)
                    np.testing.assert_array_equal(found, values, err_msg=f"{name} {field}")


@pytest.mark.parametrize("placement", ["dense", "packed"])
def test_the_decoder_loads_the_same_from_both(tmp_path, placement):
    demo = find_artifact("demo")
    artifact_to_checkpoint(demo, tmp_path / "orbax")
    loaded = []
    for source in (open_artifact(demo), open_checkpoint(tmp_path / "orbax", CPU)):
        with source as artifact:
            text = text_config(artifact.components["text"].config, check_artifact(artifact))
            dtype = jnp.dtype(jnp.bfloat16)
            _, specs = build_decoder(text, dtype)
            loaded.append(load_weights(artifact, specs, dtype, placement, CPU))
    first, second = (jax.tree.leaves(weights) for weights in loaded)
    assert jax.tree.structure(loaded[0]) == jax.tree.structure(loaded[1])
    for one, two in zip(first, second, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


class Killed(BaseException):
    """Stands for a kill: nothing handles it."""


@pytest.mark.parametrize("stop_at", [0, 1, 4])
@pytest.mark.parametrize("midway", [False, True], ids=["between groups", "inside a group"])
def test_a_killed_conversion_goes_on(
    tmp_path, artifact, small_groups, monkeypatch, stop_at, midway
):
    save, saved = orbax.save_group, []

    def save_until(path, arrays, metadata=None):
        if len(saved) == stop_at:
            if midway:
                save(path, arrays, metadata)
                last = max(
                    (tmp_path / ".orbax.partial").glob("*.partial_save/*"), key=os.path.getmtime
                )
                (last / "commit_success.txt").unlink()
            raise Killed
        saved.append(sorted(arrays))
        save(path, arrays, metadata)

    monkeypatch.setattr(orbax, "save_group", save_until)
    with pytest.raises(Killed):
        artifact_to_checkpoint(artifact, tmp_path / "orbax")
    assert not (tmp_path / "orbax").exists()
    again = []
    monkeypatch.setattr(
        orbax, "save_group", lambda *group: (again.append(sorted(group[1])), save(*group))
    )
    artifact_to_checkpoint(artifact, tmp_path / "orbax")
    assert not [group for group in again if group in saved]
    assert verify_conversion(artifact, tmp_path / "orbax")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["every.ninfer", "orbax"]


def test_work_on_a_replaced_source_is_not_taken_up(tmp_path, artifact, small_groups, monkeypatch):
    save, count = orbax.save_group, []

    def save_twice(*group):
        count.append(group)
        if len(count) == 3:
            raise Killed
        save(*group)

    monkeypatch.setattr(orbax, "save_group", save_twice)
    with pytest.raises(Killed):
        artifact_to_checkpoint(artifact, tmp_path / "orbax")
    monkeypatch.undo()
    artifact.unlink()
    other = write_every_format(artifact, metadata={"name": "another"})[0]
    artifact_to_checkpoint(other, tmp_path / "orbax")
    assert verify_conversion(other, tmp_path / "orbax")
    with open_checkpoint(tmp_path / "orbax") as opened:
        assert opened.name == "another"


def test_a_fault_leaves_nothing(tmp_path, artifact, small_groups, monkeypatch):
    def full(*group):
        raise ArtifactError("orbax: cannot be written: No space left on device")

    before = artifact.read_bytes()
    monkeypatch.setattr(orbax, "save_group", full)
    with pytest.raises(ArtifactError, match="No space left"):
        artifact_to_checkpoint(artifact, tmp_path / "orbax")
    assert list(tmp_path.iterdir()) == [artifact] and artifact.read_bytes() == before


def test_a_full_disk_is_seen_before_writing(tmp_path, artifact, monkeypatch):
    monkeypatch.setattr(staging_module, "SPARE_BYTES", 1 << 60)
    with pytest.raises(ArtifactError, match=r"bytes are free, .* are needed; free some space"):
        artifact_to_checkpoint(artifact, tmp_path / "orbax")
    assert list(tmp_path.iterdir()) == [artifact]


def test_existing_targets_are_not_touched(tmp_path, artifact):
    (tmp_path / "orbax").mkdir()
    with pytest.raises(ArtifactError, match="orbax: exists already and is not overwritten"):
        artifact_to_checkpoint(artifact, tmp_path / "orbax")
    assert not list((tmp_path / "orbax").iterdir())


@pytest.fixture
def checkpoint(tmp_path, artifact):
    artifact_to_checkpoint(artifact, tmp_path / "orbax")
    return tmp_path / "orbax"


def edit_metadata(checkpoint, change) -> None:
    path = checkpoint / "_CHECKPOINT_METADATA"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document["custom_metadata"])
    path.write_text(json.dumps(document), encoding="utf-8")
    (checkpoint / orbax.FILE_LIST).unlink()


def test_an_older_layout_names_the_command(checkpoint):
    edit_metadata(checkpoint, lambda facts: facts["ninfer"].update(layout_version=0))
    with pytest.raises(
        ArtifactError,
        match=r"layout version 0, this version reads 1; convert the artifact again: "
        r"python tools/convert_artifact.py every.ninfer orbax",
    ):
        open_checkpoint(checkpoint)


def test_a_foreign_checkpoint(tmp_path):
    orbax.save_group(tmp_path / "other", {"w": np.zeros(3)})
    orbax.finish(tmp_path / "other")
    with pytest.raises(ArtifactError, match="an Orbax checkpoint, but not one made by"):
        open_checkpoint(tmp_path / "other")
    with pytest.raises(ArtifactError, match="a folder, but not an Orbax checkpoint"):
        open_checkpoint(tmp_path)


def test_a_missing_tensor_is_named(checkpoint):
    def add(facts):
        stored = dict(facts["ninfer"]["directory"]["objects"][-1])
        stored |= {"id": "late", "offset": stored["offset"] + 65536}
        facts["ninfer"]["directory"]["objects"].append(stored)
        facts["ninfer"]["directory"]["files"][0]["payload_bytes"] += 1 << 20

    edit_metadata(checkpoint, add)
    with pytest.raises(ArtifactError, match="object 'late': array 'late:base' is missing"):
        open_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["ninfer"].pop("directory"),
        lambda facts: facts["ninfer"].update(directory=[]),
        lambda facts: facts["ninfer"]["directory"].pop("bindings"),
        lambda facts: facts["ninfer"].update(container_version="x"),
        lambda facts: facts["ninfer"].update(artifact_id=7),
        lambda facts: facts.update(ninfer=3),
        lambda facts: facts["ninfer"]["directory"]["objects"][1].update(shape=[1 << 40, 1 << 20]),
        lambda facts: facts["ninfer"]["directory"]["objects"][1].update(format="other"),
    ],
)
def test_damaged_metadata_gets_one_line(checkpoint, change):
    edit_metadata(checkpoint, change)
    with pytest.raises(ArtifactError, match=r"^orbax: ") as caught:
        open_checkpoint(checkpoint)
    assert "\n" not in caught.value.message


def test_metadata_that_is_no_json(checkpoint):
    (checkpoint / "_CHECKPOINT_METADATA").write_text("{", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"file _CHECKPOINT_METADATA has 1 bytes, expected "):
        open_checkpoint(checkpoint)
    (checkpoint / orbax.FILE_LIST).unlink()
    with pytest.raises(ArtifactError, match="orbax: ") as caught:
        open_checkpoint(checkpoint)
    assert "\n" not in caught.value.message


def test_every_missing_or_short_file_is_named(checkpoint):
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        if path.name == orbax.FILE_LIST:
            continue
        content, name = path.read_bytes(), str(path.relative_to(checkpoint))
        path.unlink()
        if name != "_CHECKPOINT_METADATA":
            with pytest.raises(ArtifactError, match=rf"orbax: the file {name} is missing"):
                open_checkpoint(checkpoint)
        path.write_bytes(content + b"x")
        message = rf"the file {name} has {len(content) + 1} bytes, expected {len(content)}; convert"
        with pytest.raises(ArtifactError, match=message):
            open_checkpoint(checkpoint)
        path.write_bytes(content)
    open_checkpoint(checkpoint)


@pytest.mark.parametrize("text", ["", "[]", '{"a": []}', "3"])
def test_a_damaged_list_of_files(checkpoint, text):
    (checkpoint / orbax.FILE_LIST).write_text(text, encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"ninfer_files.json is not a list of files"):
        open_checkpoint(checkpoint)


def test_a_difference_is_named(tmp_path, artifact):
    other = write_every_format(
        tmp_path / "other.ninfer", resources={"resource/ä.json": b'{"b": "\xc3\xb4"}'}
    )[0]
    with pytest.raises(ArtifactError, match=r"object 'resource/ä.json' differs at byte 8 of 11"):
        verify_conversion(artifact, other)
    fewer = write_every_format(
        tmp_path / "fewer.ninfer",
        resources={"resource/ä.json": b"{}", "resource/b": b"x"},
    )[0]
    with pytest.raises(ArtifactError, match="object 'resource/b' is not on both sides"):
        verify_conversion(artifact, fewer)
