"""The conversion command as a process: what it prints, what it leaves, what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer_jax.artifact import open_artifact
from ninfer_jax.config.checks import find_artifact
from tests.checkpoint.every_format import write_every_format

TOOL = [sys.executable, "tools/convert_artifact.py"]


def run(*arguments, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the tool; `limit` is the largest file it may write, as a full disk would have it."""
    shell = ["bash", "-c", f'ulimit -f {limit // 1024} && exec "$@"', "-"] if limit else []
    return subprocess.run(
        [*shell, *TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )


def test_there_and_back_with_proof(tmp_path):
    demo = find_artifact("demo")
    there = run(demo, tmp_path / "orbax", "--verify")
    assert there.returncode == 0, there.stderr
    assert "demo.ninfer sha256 " in there.stdout
    assert "92 objects are the same on both sides, byte for byte" in there.stdout
    back = run(tmp_path / "orbax", tmp_path / "back.ninfer", "--verify")
    assert back.returncode == 0, back.stderr
    assert there.stderr == back.stderr == ""
    assert (tmp_path / "back.ninfer").stat().st_size == demo.stat().st_size
    split = run(demo, tmp_path / "split.ninfer", "--file-limit", 2_000_000, "--verify")
    assert split.returncode == 0, split.stderr
    assert len(list(tmp_path.glob("split.ninfer*"))) == 5
    only = run(tmp_path / "back.ninfer", tmp_path / "split.ninfer", "--verify")
    assert only.returncode == 0 and "written" not in only.stdout
    answer = subprocess.run(
        [sys.executable, "-m", "ninfer_jax.generate", tmp_path / "orbax", "--max-context", "1024",
         "--temperature", "0", "--prompt", "What is 437 + 285?"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.stdout == "722\n", answer.stderr


@pytest.mark.parametrize("target", ["orbax", "copy.ninfer"])
def test_a_full_disk_leaves_nothing_new(tmp_path, target):
    source = write_every_format(tmp_path / "every.ninfer")[0]
    before = source.read_bytes()
    failed = run(source, tmp_path / target, limit=20_000)
    assert failed.returncode == 1
    lines = failed.stderr.splitlines()
    assert len(lines) == 1 and "File too large" in lines[0], failed.stderr
    assert list(tmp_path.iterdir()) == [source] and source.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file or folder"),
        (b"NINFER\0\x07" + bytes(4096), "unsupported container version 7"),
        (b"GGUF" + bytes(4096), "not a .ninfer file"),
        ({}, "neither an Orbax checkpoint"),
    ],
    ids=["missing", "version", "foreign", "folder"],
)
def test_bad_sources_get_one_line(tmp_path, content, words):
    source = tmp_path / "source"
    if content == {}:
        source.mkdir()
    elif content is not None:
        source.write_bytes(content)
    failed = run(source, tmp_path / "orbax")
    assert failed.returncode == 1 and words in failed.stderr
    assert len(failed.stderr.splitlines()) == 1 and not (tmp_path / "orbax").exists()


def test_unreadable_sources(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    source = write_every_format(tmp_path / "every.ninfer")[0]
    source.chmod(0)
    failed = run(source, tmp_path / "orbax")
    assert failed.returncode == 1 and "Permission denied" in failed.stderr


def test_an_interrupt_leaves_no_result_and_the_command_goes_on(tmp_path):
    """A child that interrupts itself behind its third group, then the command itself."""
    source = write_every_format(tmp_path / "every.ninfer")[0]
    child = f"""
import os, signal, sys
# A parent in the background may have it ignored, and children take that over.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, "tools")
import convert_artifact
from ninfer_jax.checkpoint import convert, orbax
convert.SAVE_BYTES = 40_000
save, count = orbax.save_group, []
def save_group(*group):
    save(*group)
    count.append(group)
    if len(count) == 3:
        os.kill(os.getpid(), signal.{{signal}})
orbax.save_group = save_group
sys.exit(convert_artifact.main([{str(source)!r}, {str(tmp_path / "orbax")!r}]))
"""
    for name, status in (("SIGINT", 130), ("SIGKILL", -signal.SIGKILL)):
        stopped = subprocess.run(
            [sys.executable, "-c", child.format(signal=name)], capture_output=True, text=True
        )
        assert stopped.returncode == status, stopped.stderr
        assert not (tmp_path / "orbax").exists() and (tmp_path / ".orbax.partial").is_dir()
    assert "goes on where it stopped" not in stopped.stderr
    ended = run(source, tmp_path / "orbax", "--verify")
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["every.ninfer", "orbax"]


def test_compressed_tensors_there_and_back(tmp_path):
    """The demo as a Hugging Face checkpoint, and from it: every word of the weights."""
    demo = find_artifact("demo")
    there = run(demo, tmp_path / "hf", "--to", "huggingface")
    assert there.returncode == 0, there.stderr
    drafter = ["--dflash2", tmp_path / "hf" / "dflash2"]
    back = run(tmp_path / "hf", tmp_path / "back.ninfer", "--profile", "nvfp4", *drafter)
    assert back.returncode == 0, back.stderr
    with open_artifact(demo) as one, open_artifact(tmp_path / "back.ninfer") as two:
        assert one.bindings.keys() == two.bindings.keys()
        for name in one.bindings:
            first, second = one.parameter(name).words(), two.parameter(name).words()
            for field in first:
                assert first[field].tobytes() == second[field].tobytes(), (name, field)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hf", "out.ninfer"], "needs --profile nvfp4 or groupwise-int"),
        (["hf", "out"], "becomes an artifact first"),
        (["hf", "out.ninfer", "--profile", "nvfp4", "--verify"], "--verify compares"),
        (["demo", "out.ninfer", "--profile", "nvfp4"], "--profile is for Hugging Face sources"),
        (["demo", "out.ninfer", "--to", "huggingface"], "--to huggingface makes a folder"),
        (["demo", "out", "--chat-template", "x"], "--chat-template is for artifact to artifact"),
    ],
)
def test_options_that_do_not_belong(tmp_path, arguments, words):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}", encoding="utf-8")
    source = find_artifact("demo") if arguments[0] == "demo" else tmp_path / arguments[0]
    failed = run(source, tmp_path / arguments[1], *arguments[2:])
    assert failed.returncode == 1 and words in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
