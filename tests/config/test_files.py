"""Config files: lookup, content, precedence, and every way of getting one wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ninfer_jax.config import GenerateConfig
from ninfer_jax.config.files import find_config_file, load_config_file
from ninfer_jax.errors import ConfigError

HEAD = "import ml_collections\ndef get_config():\n    return ml_collections.ConfigDict("


@pytest.fixture
def write(tmp_path):
    """Writes a config file and returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_default_file_flag(read, write):
    name = write(HEAD + '{"port": 9000, "max_context": 100, "api_key": None})\n')
    resolution = read("--config", name, "--port", "9001")
    assert (resolution.config.port, resolution.config.max_context) == (9001, 100)
    assert resolution.config.max_concurrency == 1
    assert resolution.given == {"port": 9001, "max_context": 100}
    assert resolution.file.name == "mine.py"
    assert resolution.file.sha256 == hashlib.sha256(Path(name).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + '{"max_contxt": 1})', "unknown key 'max_contxt'; did you mean 'max_context'?"),
        (HEAD + '{"config": "x"})', "unknown key 'config'; did you mean "),
        (HEAD + '{"port": "80"})', "port: found '80', expected an integer from 1 to 65535"),
        (HEAD + '{"port": True})', "port: found True, expected an integer"),
        (HEAD + '{"port": 0})', "port: found 0, expected an integer"),
        (HEAD + '{"cors": 1})', "cors: found 1, expected True or False"),
        (HEAD + '{"temperature": "hot"})', "temperature: found 'hot', expected a number"),
        (HEAD + '{"api_key": 12345})', "api_key: found a value of the wrong form"),
        ("x = 1\n", "found no get_config"),
        ("def get_config():\n    return {}\n", "found dict"),
        ("def get_config():\n    return 1 / 0\n", ", line 2: ZeroDivisionError: "),
        ("def get_config(:\n", ", line 1: SyntaxError: "),
        ("import no_such_module_at_all\n", ", line 1: ModuleNotFoundError: "),
    ],
)
def test_refusals(refusal, write, text, message):
    found = refusal("--config", write(text))
    assert found.startswith("config file ")
    assert message in found
    assert "12345" not in found


def test_a_missing_file_names_the_shipped_ones(refusal):
    message = refusal("--config", "nothing.py")
    assert message == (
        "--config nothing.py: no such file, neither as a path nor among the shipped configs "
        "(demo.py, reasoning.py)"
    )


def test_a_folder_is_no_config_file(refusal, tmp_path):
    assert "no such file" in refusal("--config", str(tmp_path))


def test_lookup_order(tmp_path, monkeypatch):
    checkout, packaged = tmp_path / "configs", tmp_path / "package"
    for folder in (checkout, packaged):
        folder.mkdir()
        (folder / "both.py").touch()
    (packaged / "wheel.py").touch()
    folders = (checkout, packaged)
    assert find_config_file("both.py", folders) == checkout / "both.py"
    assert find_config_file("wheel.py", folders) == packaged / "wheel.py"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "both.py").touch()
    assert find_config_file("both.py", folders) == Path("both.py")


def test_an_unreadable_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config file .*: Is a directory"):
        load_config_file(tmp_path, known=["port"])


def test_a_file_may_hold_the_options_of_every_entry_point(read, write):
    name = write(HEAD + '{"port": 9000, "max_new": 5, "temperature": 0.5})')
    assert read("--config", name).given == {"port": 9000, "temperature": 0.5}
    answer = read("--config", name, "--prompt", "x", table=GenerateConfig)
    assert answer.given == {"max_new": 5, "temperature": 0.5, "prompt": "x"}


def test_the_output_limit_of_a_server_serves_the_one_shot_command(read, write):
    name = write(HEAD + '{"default_max_tokens": 700, "kv_capacity": 99999})')
    config = read("--config", name, "--prompt", "x", table=GenerateConfig).config
    assert (config.max_new, config.kv_capacity) == (700, None)
    flag = read("--config", name, "--prompt", "x", "--max-new", "3", table=GenerateConfig)
    assert flag.config.max_new == 3


def test_print_config(read, write):
    name = write(HEAD + '{"api_key": "secret", "kv_capacity": 100, "max_context": 100})')
    printed = read("--config", name, "--print-config").message
    assert "secret" not in printed
    members = json.loads(printed)
    assert members["api_key"] == "<redacted>"
    assert members["kv_capacity"] == 128
    assert members["port"] == 8080
