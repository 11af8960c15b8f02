"""What is refused before anything is loaded, and in which order."""

from __future__ import annotations

import pytest

from ninfer_jax import serve
from ninfer_jax.config import GenerateConfig, ServeConfig, checks
from ninfer_jax.config.generate import check_generate
from ninfer_jax.config.options import options_of
from ninfer_jax.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-tokens", "3"], "--draft-tokens needs --spec; give --spec or leave it out"),
        (["--lm-head-draft"], "--lm-head-draft needs --spec; give --spec or leave it out"),
        (["--spec", "mtp"], "--spec mtp needs --draft-tokens K"),
        (
            ["--spec", "mtp", "--draft-tokens", "6"],
            "--draft-tokens: found 6, expected 1 to 5 for --spec mtp",
        ),
        (["--kv-capacity", "8128"], "--kv-capacity: found 8128 tokens (127 pages of 64), expected"),
        (["--kv-capacity", "8193"], "--kv-capacity: found 8193 tokens (129 pages of 64), expected"),
        (
            ["--host-context-mib", "0", "--host-kv-mib", "0"],
            "--host-kv-mib and --host-context-mib are two ways of sizing the same thing",
        ),
        (
            ["--host-context-mib", "1", "--max-shared-prefixes", "1"],
            "--max-shared-prefixes and --host-context-mib are two ways of sizing the same thing",
        ),
    ],
)
def test_combinations(read, arguments, message):
    with pytest.raises(ConfigError) as raised:
        checks.check_combinations(read(*arguments).config)
    assert raised.value.message.startswith(message)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--spec", "mtp", "--draft-tokens", "5"],
        ["--spec", "dflash2", "--draft-tokens", "15", "--lm-head-draft", "--vision"],
        ["--no-thinking", "--default-thinking-budget", "5"],
        ["--no-prefix-reuse", "--device-state-slots", "0"],
        ["--kv-capacity", "8192"],
    ],
)
def test_legal_combinations(read, arguments):
    checks.check_combinations(read(*arguments).config)


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--vision"], "--vision"),
        (["--media-cache-mib", "1024"], "--media-cache-mib 1024"),
        (["--media-live-mib", "1"], "--media-live-mib 1"),
        (["--media-preprocess-threads", "0"], "--media-preprocess-threads 0"),
        (["--kv-dtype", "nvfp4"], "--kv-dtype nvfp4"),
        (["--kv-dtype", "fp8"], "--kv-dtype fp8"),
        (["--kv-capacity", "auto"], "--kv-capacity auto"),
        (["--host-context-mib", "0"], "--host-context-mib 0.0"),
        (["--host-kv-mib", "0"], "--host-kv-mib 0"),
        (["--host-state-slots", "0"], "--host-state-slots 0"),
        (["--device-state-slots", "1"], "--device-state-slots 1"),
        (["--context-cost-presets", "x"], "--context-cost-presets x"),
        (["--default-thinking-budget", "9"], "--default-thinking-budget 9"),
        (["--request-log-jsonl", "x"], "--request-log-jsonl x"),
        (["--response-store-max-mib", "1"], "--response-store-max-mib 1"),
        (["--response-store-max-records", "1"], "--response-store-max-records 1"),
    ],
)
def test_features_that_do_not_exist_are_refused(read, arguments, flags):
    with pytest.raises(ConfigError) as raised:
        checks.check_available(read(*arguments).given)
    assert raised.value.message == f"{flags} is not available in this version; leave it out"


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--json"], "--json"),
        (["--json-schema", "x"], "--json-schema x"),
        (["--thinking-budget", "5"], "--thinking-budget 5"),
    ],
)
def test_features_of_the_one_shot_command_that_do_not_exist(read, arguments, flags):
    given = read("--prompt", "x", *arguments, table=GenerateConfig).given
    with pytest.raises(ConfigError, match=f"{flags} is not available in this version"):
        checks.check_available(given)


def test_several_refused_features_are_one_line(read):
    given = read("--request-log-jsonl", "x", "--vision").given
    with pytest.raises(ConfigError) as raised:
        checks.check_available(given, source="mine.py")
    assert raised.value.message == (
        "--request-log-jsonl x, --vision are not available in this version; "
        "leave them out (see the config file mine.py)"
    )


@pytest.mark.parametrize("name", checks.NOT_AVAILABLE)
def test_every_entry_of_the_table_is_an_option(name):
    assert name in {**options_of(ServeConfig), **options_of(GenerateConfig)}


def test_everything_else_is_available(read):
    given = read("x.ninfer", "--kv-dtype", "bf16", "--no-prefix-reuse", "--no-cuda-graph").given
    checks.check_available(given)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], []),
        (["--no-cuda-graph"], ["--no-cuda-graph: accepted, without effect in this engine"]),
        (
            ["--max-private-continuations", "2", "--max-shared-prefixes", "1"],
            [
                "--max-private-continuations, --max-shared-prefixes: accepted, without effect in "
                "this engine"
            ],
        ),
        (["--host", "0.0.0.0", "--api-key", "k"], []),
        (
            ["--host", "0.0.0.0"],
            [
                "listening on 0.0.0.0 without --api-key: anyone who reaches this address can use "
                "the server"
            ],
        ),
    ],
)
def test_warnings(read, arguments, lines):
    assert checks.warnings(read(*arguments).given) == lines


@pytest.mark.parametrize("word", ["spin", "blocking", "yield", "auto"])
def test_known_wait_words(word):
    checks.check_environment({"NINFER_CUDA_SYNC": word})


@pytest.mark.parametrize("word", ["", "busy"])
def test_unknown_wait_words(word):
    with pytest.raises(ConfigError, match=f"NINFER_CUDA_SYNC: found '{word}', expected one of"):
        checks.check_environment({"NINFER_CUDA_SYNC": word})


def test_no_artifact():
    with pytest.raises(ConfigError, match=r"no artifact given: .* make demo"):
        checks.find_artifact(None)


def test_a_missing_artifact_says_where_to_get_one(tmp_path):
    path = tmp_path / "qwen3_8_27b_nvfp4.ninfer"
    with pytest.raises(ConfigError) as raised:
        checks.find_artifact(str(path))
    assert raised.value.message == (
        f"the artifact file {path} does not exist (looked in {tmp_path}): download "
        "qwen3_8_27b_nvfp4.ninfer from the Hugging Face repositories neroued/... "
        "(https://huggingface.co/neroued) and give its path as first argument, or try the demo, "
        "which needs no download: make demo"
    )


def test_a_folder_is_no_artifact(tmp_path):
    with pytest.raises(ConfigError, match="is not a regular file"):
        checks.find_artifact(str(tmp_path))


def test_the_demo_is_the_one_artifact_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_DEMO_FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"the demo artifact: found 0 \.ninfer files"):
        checks.find_artifact("demo")
    (tmp_path / "demo.ninfer").touch()
    assert checks.find_artifact("demo") == tmp_path / "demo.ninfer"


def test_the_missing_file_is_told_before_missing_features(read, tmp_path, monkeypatch):
    """`--config reasoning.py` on a machine without the artifact."""
    monkeypatch.chdir(tmp_path)
    resolution = read("--config", "reasoning.py")
    with pytest.raises(ConfigError, match=r"qwen3_8_27b_nvfp4\.ninfer does not exist"):
        serve.check(resolution)
    (tmp_path / "qwen3_8_27b_nvfp4.ninfer").touch()
    with pytest.raises(ConfigError, match=r"--kv-dtype nvfp4.* are not available in this version"):
        serve.check(resolution)


def test_reasoning_is_the_production_command(read):
    config = read("--config", "reasoning.py").config
    checks.check_combinations(config)
    assert (config.host, config.port, config.kv_pages) == ("0.0.0.0", 12435, 5219)
    assert (config.max_context, config.max_concurrency) == (262144, 3)
    assert (config.spec, config.draft_tokens, config.kv_dtype) == ("dflash2", 8, "nvfp4")
    assert config.default_max_tokens == 65536
    assert config.preserve_thinking


def test_demo_is_served_by_this_version(read):
    resolution = read("--config", "demo.py")
    checks.check_combinations(resolution.config)
    checks.check_available(resolution.given)
    assert resolution.config.model == "demo"
    assert resolution.config.kv_pages >= 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "found neither of --prompt and --messages, expected exactly one"),
        (["--prompt", "x", "--messages", "y"], "found both of --prompt and --messages"),
        (
            ["--prompt", "x", "--no-thinking", "--thinking-budget", "5"],
            "--thinking-budget and --no-thinking contradict each other",
        ),
        (
            ["--prompt", "x", "--no-thinking", "--reasoning-effort", "low"],
            "--reasoning-effort low and --no-thinking contradict each other",
        ),
        (
            ["--prompt", "x", "--json", "--json-schema", "s"],
            "found both of --json and --json-schema, expected one",
        ),
    ],
)
def test_one_shot_combinations(read, arguments, message):
    with pytest.raises(ConfigError) as raised:
        check_generate(read(*arguments, table=GenerateConfig).config)
    assert raised.value.message.startswith(message)


def test_the_one_shot_command_needs_one_lane(read):
    config = read("m", "--prompt", "x", table=GenerateConfig).config
    check_generate(config)
    engine = config.engine_config()
    assert (engine.model, engine.max_context, engine.max_concurrency) == ("m", 2048, 1)
    assert (config.seed, engine.seed) == (0, 0)
