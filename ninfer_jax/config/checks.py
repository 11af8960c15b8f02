"""Which configurations are refused, beyond the range of each single option.

Three steps, each raising `ConfigError`: `check_combinations` needs the configuration alone,
`check_available` says which known options this version cannot serve yet, `find_artifact` looks
at the disk.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ninfer_jax
from ninfer_jax.config.options import options_of
from ninfer_jax.config.serve import ServeConfig
from ninfer_jax.errors import ConfigError

NOT_AVAILABLE: Mapping[str, Collection[str] | None] = {
    "kv_capacity": ("auto",),
    "kv_dtype": ("int8", "fp8", "nvfp4", "k8v4"),
    "device_state_slots": None,
    "host_context_mib": None,
    "host_state_slots": None,
    "host_kv_mib": None,
    "context_cost_presets": None,
    "default_thinking_budget": None,
    "thinking_budget": None,
    "vision": None,
    "media_cache_mib": None,
    "media_live_mib": None,
    "media_preprocess_threads": None,
    "request_log_jsonl": None,
    "response_store_max_records": None,
    "response_store_max_mib": None,
    "json": None,
    "json_schema": None,
}
"""Options of features that do not exist yet: the values refused, or None for any use."""

NO_EFFECT = (
    "no_cuda_graph",
    "max_private_continuations",
    "max_shared_prefixes",
    "max_long_anchors_per_continuation",
)
"""Options that are accepted so that older command lines work, and do nothing."""

DEMO = "demo"
OFFICIAL_FILE = "qwen3_8_27b_nvfp4.ninfer"
_LARGEST_MTP = 5
_DEMO_FOLDER = Path(ninfer_jax.__file__).parent / "demo"
_SYNC_WORDS = ("spin", "blocking", "yield", "auto")


def check_combinations(config: ServeConfig) -> None:
    """Refuses settings that contradict each other."""
    if config.spec is None:
        for name in ("draft_tokens", "lm_head_draft"):
            if getattr(config, name):
                raise ConfigError(f"{_flag(name)} needs --spec; give --spec or leave it out")
    elif config.draft_tokens is None:
        raise ConfigError(f"--spec {config.spec} needs --draft-tokens K")
    elif config.spec == "mtp" and config.draft_tokens > _LARGEST_MTP:
        raise ConfigError(
            f"--draft-tokens: found {config.draft_tokens}, expected 1 to {_LARGEST_MTP} "
            "for --spec mtp"
        )
    if config.host_context_mib is not None:
        for name in ("host_state_slots", "host_kv_mib", *NO_EFFECT[1:]):
            if getattr(config, name) is not None:
                raise ConfigError(
                    f"{_flag(name)} and --host-context-mib are two ways of sizing the same "
                    "thing; leave one out"
                )
    config.kv_pages  # noqa: B018  (raises if the pool is outside its bounds)


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuses an unknown `NINFER_CUDA_SYNC`, which is otherwise accepted without effect."""
    word = environment.get("NINFER_CUDA_SYNC", "spin")
    if word not in _SYNC_WORDS:
        raise ConfigError(
            f"NINFER_CUDA_SYNC: found {word!r}, expected one of {', '.join(_SYNC_WORDS)}"
        )


def check_available(given: Mapping[str, Any], *, source: str | None = None) -> None:
    """Refuses options of features that this version does not have.

    `given` are the values that a user gave; defaults are never refused. `source` is the config
    file they may come from.
    """
    refused = [
        _flag(name) if value is True else f"{_flag(name)} {value}"
        for name, value in given.items()
        if name in NOT_AVAILABLE and _asks_for_something(value, NOT_AVAILABLE[name])
    ]
    if refused:
        are, them = ("is", "it") if len(refused) == 1 else ("are", "them")
        origin = f" (see the config file {source})" if source else ""
        raise ConfigError(
            f"{', '.join(refused)} {are} not available in this version; leave {them} out{origin}"
        )


def warnings(given: Mapping[str, Any]) -> list[str]:
    """One line for what was accepted and has no effect, and for what is risky."""
    lines = []
    idle = [_flag(name) for name in NO_EFFECT if given.get(name) not in (None, False)]
    if idle:
        lines.append(f"{', '.join(idle)}: accepted, without effect in this engine")
    if given.get("host") not in (None, "127.0.0.1", "localhost", "::1") and not given.get(
        "api_key"
    ):
        lines.append(
            f"listening on {given['host']} without --api-key: anyone who reaches this address "
            "can use the server"
        )
    return lines


def find_artifact(model: str | None) -> Path:
    """The artifact file, or converted checkpoint folder, that `model` names.

    `demo` is the artifact inside this package.

    Raises `ConfigError` that says which file is missing, where official ones come from, and how
    to try the demo.
    """
    if model is None:
        raise ConfigError(
            "no artifact given: expected FILE.ninfer as first argument or --config FILE.py; "
            "try the demo: make demo"
        )
    if model == DEMO:
        return _demo_artifact()
    path = Path(model)
    if path.is_file() or (path / "_CHECKPOINT_METADATA").is_file():
        return path
    found = "does not exist"
    if os.path.lexists(path):
        found = "is not a regular file, nor a folder made by tools/convert_artifact.py"
    raise ConfigError(
        f"the artifact file {path} {found} (looked in {path.absolute().parent}): download "
        f"{OFFICIAL_FILE} from the Hugging Face repositories neroued/... "
        "(https://huggingface.co/neroued) and give its path as first argument, or try the "
        "demo, which needs no download: make demo"
    )


def _demo_artifact() -> Path:
    found = sorted(_DEMO_FOLDER.glob("*.ninfer"))
    if len(found) != 1:
        raise ConfigError(
            f"the demo artifact: found {len(found)} .ninfer files in {_DEMO_FOLDER}, expected "
            "one; install the package again"
        )
    return found[0]


def _asks_for_something(value: Any, refused: Collection[str] | None) -> bool:
    if value is None or value is False:
        return False
    return refused is None or value in refused


def _flag(name: str) -> str:
    known = options_of(ServeConfig)
    return known[name].flag if name in known else "--" + name.replace("_", "-")
