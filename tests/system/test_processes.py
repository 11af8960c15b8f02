"""Start, refusal and end of real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.conftest import start_server

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, cwd: Path | None = None, **environment: str):
    """Runs a module of the package to its end."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def test_generate_prints_the_answer_and_nothing_else_on_stdout():
    done = run("ninfer_jax.generate", "--config", "demo.py", "--prompt", "What is 437 + 285?")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "722\n"
    assert "7+5+0=12" in done.stderr
    assert "decode" in done.stderr


def test_a_port_in_use_is_refused_before_weights_load():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started = time.monotonic()
        done = run("ninfer_jax.serve", "--config", "demo.py", "--port", str(port))
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "weights" not in done.stderr
    assert time.monotonic() - started < 60


def test_the_production_config_names_the_missing_file_and_the_demo(tmp_path):
    done = run("ninfer_jax.serve", "--config", "reasoning.py", cwd=tmp_path)
    assert done.returncode == 1
    critical = [line for line in done.stderr.splitlines() if "CRITICAL" in line]
    assert len(critical) == 1
    assert "qwen3_8_27b_nvfp4.ninfer" in critical[0]
    assert "neroued" in critical[0]
    assert "make demo" in critical[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--config", "demo.py", "--max-contxt", "1"), "--max-context"),
        (("--config", "dmo.py"), "demo.py"),
        (("--config", "demo.py", "--max-context", "+8"), "+8"),
        (("--config", "demo.py", "--kv-dtype", "int8"), "not available"),
        (("/nowhere/x.ninfer",), "/nowhere/x.ninfer"),
    ],
)
def test_bad_command_lines_get_one_line(arguments, words):
    done = run("ninfer_jax.serve", *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated"),
        (b"GGUF" + bytes(60), "not a .ninfer file"),
        (b"NINFER\0\x09" + bytes(60), "version"),
    ],
)
def test_foreign_files_are_refused(tmp_path, content, words):
    path = tmp_path / "x.ninfer"
    path.write_bytes(content)
    done = run("ninfer_jax.serve", str(path), "--port", "18975")
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_positional_form_serves_and_sigterm_ends_it():
    artifact = next((ROOT / "ninfer_jax" / "demo").glob("*.ninfer"))
    few = ("--max-concurrency", "2", "--prefill-chunk", "128")
    server = start_server(str(artifact), "--max-context", "1024", *few)
    with server.client() as client:
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 1024
    assert server.stop() == 0
    assert any("server stopped" in line for line in server.lines)


def test_the_wheel_works_outside_the_checkout(tmp_path):
    """Configs and demo artifact travel with the wheel."""
    built = run(
        "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT)
    )
    assert built.returncode == 0, built.stderr
    wheel = next(tmp_path.glob("*.whl"))
    site = tmp_path / "site"
    installed = run("pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel))
    assert installed.returncode == 0, installed.stderr
    done = run(
        "ninfer_jax.generate",
        "--config",
        "demo.py",
        "--prompt",
        "What is 47 + 38?",
        cwd=tmp_path,
        PYTHONPATH=str(site),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "85\n"
    where = subprocess.run(
        [sys.executable, "-c", "import ninfer_jax; print(ninfer_jax.__file__)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert str(site) in where.stdout
