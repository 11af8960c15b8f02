"""Resuming, refusing and cleaning up unfinished output."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from ninfer_jax.artifact import Binding, Component, TensorToWrite, open_artifact, write_artifact
from ninfer_jax.artifact import staging as staging_module
from ninfer_jax.artifact import writer as writer_module
from ninfer_jax.artifact.staging import Staging, require_space
from ninfer_jax.errors import ArtifactError

COUNT = 40


class Source:
    """Numbered tensors; stops as a kill or a fault would, before one of them."""

    def __init__(self, stop_at: int | None = None, error: BaseException | None = None):
        self.produced: list[int] = []
        self._stop_at, self._error = stop_at, error

    def tensor(self, index: int) -> TensorToWrite:
        def data():
            if index == self._stop_at:
                raise self._error
            self.produced.append(index)
            words = np.arange(index, 3000 + 2 * index, dtype="<i4")
            return iter([words[:1000], words[1000:]])

        return TensorToWrite(f"weight/{index:06d}", "int32", (3000 + index,), data)


def write(path, source: Source, origin: str | None = "origin", **changes):
    settings = {
        "components": {"text": Component({})},
        "tensors": [source.tensor(index) for index in range(COUNT)],
        "resources": {"r": b"resource"},
        "bindings": {f"text/{i}": Binding(object=f"weight/{i:06d}") for i in range(COUNT)},
        "source": origin,
    }
    return write_artifact(path, **(settings | changes))


def assert_complete(files) -> None:
    with open_artifact(files[0]) as artifact:
        for index in range(COUNT):
            words = artifact.parameter(f"text/{index}", (3000 + index,)).decode()
            assert words.tolist() == list(range(index, 3000 + 2 * index))


@pytest.fixture
def recorded_often(monkeypatch):
    monkeypatch.setattr(writer_module, "RECORD_BYTES", 1)


@pytest.mark.parametrize("file_limit", [1 << 40, 9 * 4096, 5 * 4096])
@pytest.mark.parametrize("stop_at", [0, 1, 17, COUNT - 1])
def test_an_interrupted_write_goes_on(tmp_path, recorded_often, stop_at, file_limit):
    path = tmp_path / "a.ninfer"
    with pytest.raises(KeyboardInterrupt):
        write(path, Source(stop_at, KeyboardInterrupt()), file_limit=file_limit)
    assert not path.exists()
    again = Source()
    files = write(path, again, file_limit=file_limit)
    assert again.produced == list(range(stop_at, COUNT))
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert_complete(files)


@pytest.mark.parametrize("change", ["origin", "resource", "limit"])
def test_work_under_another_plan_is_not_taken_up(tmp_path, recorded_often, change):
    path = tmp_path / "a.ninfer"
    with pytest.raises(KeyboardInterrupt):
        write(path, Source(20, KeyboardInterrupt()))
    again = Source()
    changes = {"resources": {"r": b"other"}} if change == "resource" else {}
    changes |= {"file_limit": 9 * 4096} if change == "limit" else {}
    files = write(path, again, "other" if change == "origin" else "origin", **changes)
    assert again.produced == list(range(COUNT))
    assert_complete(files)


def test_without_an_origin_nothing_is_taken_up(tmp_path, recorded_often):
    path = tmp_path / "a.ninfer"
    with pytest.raises(KeyboardInterrupt):
        write(path, Source(20, KeyboardInterrupt()), None)
    again = Source()
    assert_complete(write(path, again, None))
    assert again.produced == list(range(COUNT))


def test_a_fault_leaves_nothing(tmp_path, recorded_often):
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "a.ninfer", Source(20, OSError(28, "No space left on device")))
    assert not list(tmp_path.iterdir())


def test_a_damaged_journal_is_ignored(tmp_path, recorded_often):
    path = tmp_path / "a.ninfer"
    with pytest.raises(KeyboardInterrupt):
        write(path, Source(20, KeyboardInterrupt()))
    (tmp_path / ".a.ninfer.partial" / "journal.json").write_text('{"plan": 3', "utf-8")
    assert_complete(write(path, Source()))


def test_a_file_shorter_than_recorded_begins_anew(tmp_path, recorded_often):
    """Bytes that the journal speaks of may be lost with the power."""
    path = tmp_path / "a.ninfer"
    with pytest.raises(KeyboardInterrupt):
        write(path, Source(20, KeyboardInterrupt()))
    os.truncate(tmp_path / ".a.ninfer.partial" / "a.ninfer", 5000)
    assert_complete(write(path, Source()))


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "a.ninfer"
    with Staging(path, {}), pytest.raises(ArtifactError, match="another process is writing it"):
        write(path, Source())
    assert_complete(write(path, Source()))


def test_a_disk_that_is_too_small_is_refused_before_writing(tmp_path, monkeypatch):
    usage = staging_module.shutil.disk_usage(tmp_path)._replace(free=100 << 20)
    monkeypatch.setattr(staging_module.shutil, "disk_usage", lambda folder: usage)
    require_space(tmp_path, 36 << 20)
    with pytest.raises(ArtifactError, match=r"104,857,600 bytes are free, 104,857,601 are needed"):
        require_space(tmp_path, (36 << 20) + 1)
    monkeypatch.setattr(staging_module, "SPARE_BYTES", 1 << 40)
    with pytest.raises(ArtifactError, match="free some space"):
        write(tmp_path / "a.ninfer", Source())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be written: No such file"):
        write(tmp_path / "nowhere" / "a.ninfer", Source())


def test_the_journal_is_readable(tmp_path):
    staging = Staging(tmp_path / "a", {"kind": "test"})
    staging.record(objects=3)
    text = (staging.folder / "journal.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"plan": {"kind": "test"}, "state": {"objects": 3}}
    staging.__exit__(KeyboardInterrupt, None, None)
    with Staging(tmp_path / "a", {"kind": "test"}) as again:
        assert again.state == {"objects": 3}
    assert not list(tmp_path.iterdir())
