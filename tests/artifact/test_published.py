"""The table of official artifacts, and what identifies a file."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from ninfer_jax.artifact.published import PUBLISHED, READ_BYTES, file_sha256, identify, of_size
from ninfer_jax.errors import ArtifactError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "artifact.md"


def test_the_table_is_well_formed():
    assert len(PUBLISHED) == 12
    for file in PUBLISHED:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert all(re.fullmatch("[0-9a-f]{40}", revision) for revision in file.revisions)
        assert file.profile in ("nvfp4", "groupwise-int") and file.container in (1, 2, 3)
        assert file.file_name.endswith(".ninfer")
    assert len({file.sha256 for file in PUBLISHED}) == len(PUBLISHED)
    assert len({file.name for file in PUBLISHED}) == len(PUBLISHED)


def test_the_manual_lists_the_same_files():
    text = PAGE.read_text(encoding="utf-8")
    for file in PUBLISHED:
        assert f"| {file.size:,} | `{file.sha256}` |" in text


def test_identify():
    for file in PUBLISHED:
        assert identify(file.size, file.sha256) is file
        assert identify(file.size, file.sha256.upper()) is file
        assert identify(file.size + 1, file.sha256) is None
        assert identify(file.size, "0" * 64) is None


def test_the_size_alone_is_a_hint():
    assert [file.name for file in of_size(23_719_715_844)] == [
        "Qwen3.8-27B nvfp4 + DFlash2, container version 3"
    ]
    # Rewriting version 1 as version 2 changed no size.
    assert [file.container for file in of_size(17_495_365_888)] == [1, 2]
    assert of_size(1) == ()


@pytest.mark.parametrize("size", [0, 5, READ_BYTES, READ_BYTES + 1])
def test_file_sha256(tmp_path, size):
    path, reads = tmp_path / "file", []
    content = bytes(range(251)) * (size // 251 + 1)
    path.write_bytes(content[:size])
    assert file_sha256(path, reads.append) == hashlib.sha256(content[:size]).hexdigest()
    assert sum(reads) == size


def test_an_unreadable_file(tmp_path):
    with pytest.raises(ArtifactError, match="nothing: cannot be read: No such file"):
        file_sha256(tmp_path / "nothing")
