"""The command line: every flag, its bounds, and every way of getting it wrong."""

from __future__ import annotations

import shlex

import pytest

from ninfer_jax.config import GenerateConfig, ServeConfig
from ninfer_jax.config.options import options_of
from ninfer_jax.config.resolve import help_text

BOUNDS = {
    "port": (1, 65535),
    "max_request_mib": (1, None),
    "device": (0, None),
    "max_context": (1, None),
    "max_concurrency": (1, 8),
    "max_pending_requests": (1, None),
    "pending_timeout_ms": (1, None),
    "device_state_slots": (0, None),
    "draft_tokens": (1, 15),
    "default_max_tokens": (1, None),
    "default_thinking_budget": (1, 2**32 - 1),
    "top_k": (0, 20),
    "seed": (0, 2**64 - 1),
    "media_cache_mib": (0, None),
    "media_live_mib": (1, None),
    "media_preprocess_threads": (0, 64),
    "log_stats_interval_ms": (0, None),
    "response_store_max_records": (1, None),
    "response_store_max_mib": (1, None),
}
REAL_BOUNDS = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
DEFAULTS = {
    "host": "127.0.0.1",
    "port": 8080,
    "max_request_mib": 384,
    "max_context": 8192,
    "kv_dtype": "bf16",
    "max_concurrency": 1,
    "max_pending_requests": 16,
    "pending_timeout_ms": 30000,
    "prefill_chunk": 1024,
    "default_max_tokens": 8192,
    "media_cache_mib": 1024,
    "media_live_mib": 2048,
    "media_preprocess_threads": 0,
    "log_level": "info",
    "log_stats_interval_ms": 5000,
    "response_store_max_records": 1024,
    "response_store_max_mib": 256,
}


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_defaults(name, value):
    assert getattr(ServeConfig(), name) == value


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


@pytest.mark.parametrize(("name", "bounds"), {**BOUNDS, **REAL_BOUNDS}.items())
def test_bounds_are_accepted(read, name, bounds):
    for bound in bounds:
        if bound is not None:
            assert getattr(read(flag_of(name), str(bound)).config, name) == bound


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items())
def test_values_beyond_a_bound_are_refused(refusal, name, bounds):
    low, high = bounds
    found = [] if low == 0 else [low - 1]
    found += [] if high is None else [high + 1]
    for value in found:
        message = refusal(flag_of(name), str(value))
        assert message.startswith(f"{flag_of(name)}: found '{value}', expected an integer")


@pytest.mark.parametrize(("name", "bounds"), REAL_BOUNDS.items())
def test_numbers_beyond_a_bound_are_refused(refusal, name, bounds):
    low, high = bounds
    for value in (low - 0.01, high + 0.01):
        message = refusal(flag_of(name), str(value))
        assert message == (
            f"{flag_of(name)}: found '{value}', expected a number from {low} to {high}"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "80"], "unknown flag --prot; did you mean --port? --help lists all flags"),
        (["-port", "80"], "unknown flag -port; did you mean --port? --help lists all flags"),
        (["--max_context", "8"], "unknown flag --max_context; did you mean --max-context? "),
        (["--nocors"], "unknown flag --nocors; did you mean --cors? --help lists all flags"),
        (["--flagfile=x"], "unknown flag --flagfile; did you mean "),
        (["--undefok=port"], "unknown flag --undefok; did you mean "),
        (["--port"], "--port needs a value: an integer from 1 to 65535"),
        (["--port", "--cors"], "--port needs a value: an integer from 1 to 65535"),
        (["--port="], "--port: found '', expected an integer from 1 to 65535"),
        (["--port", "-1"], "--port: found '-1', expected an integer from 1 to 65535"),
        (["--port", "0x50"], "--port: found '0x50', expected an integer from 1 to 65535"),
        (["--cors=true"], "--cors is a switch and takes no value, found 'true'"),
        (["--kv-dtype", "int4"], "--kv-dtype: found 'int4', expected one of bf16, int8, fp8, "),
        (["--kv-capacity", "most"], "--kv-capacity: found 'most', expected an integer 1 or more"),
        (["--prefill-chunk", "100"], "--prefill-chunk: found '100', expected an integer 128 or "),
        (["--host-context-mib", "0.3"], "--host-context-mib: found '0.3', expected a number of "),
        (["--api-key", ""], "--api-key: found a value of the wrong form, expected a text that "),
        (["a.ninfer", "b.ninfer"], "found a second positional argument 'b.ninfer' after "),
        ([""], "model: found '', expected a path that is not empty"),
        (["--log-level", "loud"], "--log-level: found 'loud', expected one of trace, debug, "),
    ],
)
def test_refusals(refusal, arguments, message):
    assert refusal(*arguments).startswith(message)


def test_of_a_flag_given_twice_the_last_counts(read):
    assert read("--port", "80", "--port=81").config.port == 81


def test_positional_artifact_and_flags_may_be_mixed(read):
    config = read("--port", "80", "x.ninfer", "--cors").config
    assert (config.model, config.port, config.cors) == ("x.ninfer", 80, True)
    assert read("--", "--odd.ninfer").config.model == "--odd.ninfer"


def test_only_given_values_count_as_given(read):
    assert read("--port", "8080").given == {"port": 8080}


def test_the_production_command_line_is_understood(read):
    config = read(
        *shlex.split(
            "m.ninfer --host 0.0.0.0 --port 12435 --device 0 --max-context 262144 --kv-dtype nvfp4 "
            "--kv-capacity 334000 --max-concurrency 3 --prefill-chunk 1024 --pending-timeout-ms "
            "600000 --spec dflash2 --draft-tokens 8 --lm-head-draft --vision --media-cache-mib 256 "
            "--media-live-mib 512"
        )
    ).config
    assert (config.kv_pages, config.max_concurrency, config.draft_tokens) == (5219, 3, 8)
    assert config.default_max_tokens == 8192
    assert config.lm_head_draft and config.vision


def test_two_command_lines_share_nothing(read):
    read("--port", "80")
    assert read().config.port == 8080


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_flag(read, flag):
    message = read("--port", "80", flag).message
    for entry in options_of(ServeConfig).values():
        assert entry.positional or f"{entry.flag} " in message


def test_help_of_the_one_shot_command_names_its_own_flags():
    text = help_text(GenerateConfig, program="python -m ninfer_jax.generate")
    assert "--prompt" in text and "--port" not in text


def test_version(read):
    assert read("--version").message.startswith("ninfer_jax 0.")


def test_repeated_flags_are_all_kept(read):
    given = ("--stop", "a", "--stop", "b", "--stop-token-id", "3", "--stop-token-id", "4")
    config = read("--prompt", "x", *given, table=GenerateConfig).config
    assert config.stop == ("a", "b")
    assert config.stop_token_id == (3, 4)
