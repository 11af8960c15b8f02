"""Rewriting older containers as version 3: published sizes, and not one word changed."""

from __future__ import annotations

import pytest

from ninfer_jax.artifact import open_artifact
from ninfer_jax.artifact.directory import payload_end
from ninfer_jax.artifact.framing import payload_start
from ninfer_jax.artifact.inventory import (
    QWEN38_RESOURCES,
    inventory,
    plan_legacy,
)
from ninfer_jax.artifact.native import NATIVE_TEMPLATE_BYTES
from ninfer_jax.artifact.parameters import COMPONENTS
from ninfer_jax.artifact.reader import open_container
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.artifact.synthetic import write_synthetic
from ninfer_jax.artifact.upgrade import plan_upgrade, upgrade_artifact
from ninfer_jax.artifact.writer import DEFAULT_FILE_LIMIT, directory_text, layout_files
from ninfer_jax.errors import ArtifactError
from tools.convert_artifact import main
from tools.synthetic_resources import tiny_resources

WITHOUT_DFLASH2 = ("text", "mtp", "vision", "proposal")
FEATURES = ("vision", "mtp", "dflash2", "proposal")
TEMPLATE_ID = "frontend/chat_template.jinja"


@pytest.fixture
def tiny(tmp_path):
    """Write a tiny artifact of a container version; returns its path."""

    def write(profile="nvfp4", container=2, **options):
        path = tmp_path / f"{profile}.{container}.ninfer"
        write_synthetic(
            path,
            tiny_resources(),
            profile=profile,
            model_id="ninfer-tiny",
            container=container,
            **options,
        )
        return path

    return write


@pytest.mark.parametrize(
    ("profile", "components", "json_bytes", "start", "file_bytes"),
    [
        ("groupwise-int", WITHOUT_DFLASH2, 384_449, 385_024, 18_210_749_936),
        ("groupwise-int", COMPONENTS, 412_349, 413_696, 20_437_571_568),
        ("nvfp4", WITHOUT_DFLASH2, 411_915, 413_696, 21_492_938_224),
        ("nvfp4", COMPONENTS, 439_815, 442_368, 23_719_759_856),
    ],
)
def test_published_sizes_of_upgraded_files(profile, components, json_bytes, start, file_bytes):
    tensors = inventory(profile, components)
    legacy = plan_legacy(tensors, QWEN38_RESOURCES, "qwen3.8-27b", profile)
    directory = plan_upgrade(legacy, NATIVE_TEMPLATE_BYTES)
    assert len(directory_text(directory)) == json_bytes
    total = directory.files[0].payload_bytes
    text, files = layout_files(directory, total, "model.ninfer", DEFAULT_FILE_LIMIT)
    assert len(files) == 1 and payload_start(3, len(text)) == start
    assert start + total == file_bytes
    counts = (1513, 844) if "dflash2" in components else (1422, 785)
    assert (len(directory.bindings), len(directory.uses)) == counts
    assert list(directory.objects)[-1] == TEMPLATE_ID
    assert directory.objects[TEMPLATE_ID].offset % 256 == 0


@pytest.mark.parametrize("file_limit", [DEFAULT_FILE_LIMIT, 300_000])
@pytest.mark.parametrize(
    ("profile", "container"),
    [("nvfp4", 2), ("groupwise-int", 2), ("groupwise-int", 1), ("nvfp4", 3)],
)
def test_every_word_is_kept(tiny, tmp_path, profile, container, file_limit):
    source, done = tiny(profile, container), tmp_path / "new.ninfer"
    moved = []
    files = upgrade_artifact(source, done, file_limit=file_limit, progress=moved.append)
    assert (len(files) > 1) == (file_limit == 300_000)
    assert max(file.stat().st_size for file in files) <= file_limit
    with open_artifact(source) as old, open_artifact(done) as new:
        assert new.version == 3
        for id in old.objects:
            assert new.object_words(id) == old.object_words(id)
        assert list(new.objects.values()) == list(old.objects.values())
        assert new.bindings == old.bindings and new.uses == old.uses
        assert new.metadata == old.metadata and new.provenance == old.provenance
        assert new.artifact_id != old.artifact_id
        check_artifact(new, FEATURES)
        assert sum(moved) == sum(entry.payload_bytes for entry in new.files)


def test_the_payload_is_copied_byte_for_byte(tiny, tmp_path):
    source, done = tiny(), tmp_path / "new.ninfer"
    upgrade_artifact(source, done)
    old, new = open_container(source), open_container(done)
    size = payload_end(old.directory.objects)
    assert old.payload.size == new.payload.size == size
    assert old.payload.read(0, size).tobytes() == new.payload.read(0, size).tobytes()


def test_trailing_bytes_of_an_old_file_are_left_behind(tiny, tmp_path):
    source, done = tiny(), tmp_path / "new.ninfer"
    clean = source.stat().st_size
    with open(source, "ab") as file:
        file.write(b"meaningless")
    upgrade_artifact(source, done)
    with open_artifact(done) as artifact:
        start = open_container(done).header.payload_start
        assert sum(entry.payload_bytes for entry in artifact.files) == clean - (
            open_container(source).header.payload_start
        )
        assert done.stat().st_size == start + artifact.files[0].payload_bytes


def test_a_template_is_appended(tiny, tmp_path):
    source, done, template = tiny(), tmp_path / "new.ninfer", b"{{ messages }}"
    upgrade_artifact(source, done, chat_template=template)
    with open_artifact(source) as old, open_artifact(done) as new:
        assert new.resource("text", "chat_template.jinja") == template
        assert list(new.objects)[-1] == TEMPLATE_ID
        for id in old.objects.keys() - {TEMPLATE_ID}:
            assert new.object_words(id) == old.object_words(id)
        # The place of the old one stays empty.
        kept = old.objects[TEMPLATE_ID]
        assert not open_container(done).payload.read(kept.offset, kept.bytes).any()


def test_what_is_refused(tiny, minis, tmp_path):
    source, done = tiny(), tmp_path / "new.ninfer"
    with pytest.raises(ArtifactError, match="the chat template is empty"):
        upgrade_artifact(source, done, chat_template=b"")
    with pytest.raises(ArtifactError, match=r"mini\.ninfer: unknown identity 'test-model/test-wei"):
        upgrade_artifact(minis.write_version(2), done)
    with pytest.raises(ArtifactError, match=r"has no resource 'chat_template\.jinja' to replace"):
        upgrade_artifact(minis.write_version(3), done, chat_template=b"x")
    with pytest.raises(ArtifactError, match="leaves no room for payload"):
        upgrade_artifact(source, done, file_limit=8192)
    assert not done.exists()
    (tmp_path / "new.ninfer.part-0002").write_bytes(b"mine")
    with pytest.raises(ArtifactError, match="part-0002: exists already and is not overwritten"):
        upgrade_artifact(source, done, file_limit=300_000)
    assert not done.exists()


def test_a_truncated_source_leaves_nothing(tiny, tmp_path):
    source, done = tiny(file_limit=300_000, container=3), tmp_path / "new.ninfer"
    (tmp_path / f"{source.name}.part-0003").unlink()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError, match="part file"):
        upgrade_artifact(source, done)
    assert sorted(tmp_path.iterdir()) == before


def test_the_tool(tiny, tmp_path, capsys):
    source, done, template = tiny(), tmp_path / "new.ninfer", tmp_path / "t.jinja"
    assert main([str(source), str(done), "--verify"]) == 0
    assert "the same on both sides, byte for byte" in capsys.readouterr().out
    assert main([str(source), str(done)]) == 1
    assert "exists already and is not overwritten" in capsys.readouterr().err
    template.write_text("{{ messages }}", encoding="utf-8")
    other = tmp_path / "other.ninfer"
    assert main([str(source), str(other), "--chat-template", str(template)]) == 0
    assert main([str(source), str(other), "--verify"]) == 1
    assert "'frontend/chat_template.jinja' has " in capsys.readouterr().err
