"""Serves a model over HTTP.

python -m ninfer_jax.serve --config demo.py
python -m ninfer_jax.serve FILE.ninfer --port 8080 --max-context 8192
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence

from ninfer_jax.config import ServeConfig
from ninfer_jax.config.checks import (
    DEMO,
    check_available,
    check_combinations,
    check_environment,
    find_artifact,
    warnings,
)
from ninfer_jax.config.resolve import Resolution, resolve
from ninfer_jax.errors import NInferError
from ninfer_jax.server.logs import configure_logging
from ninfer_jax.server.runner import run_server
from ninfer_jax.server.service import ServedModel
from ninfer_jax.server.sockets import listen

PROGRAM = "python -m ninfer_jax.serve"
DEMO_QUESTION = "What is 437 + 285?"
_log = logging.getLogger("ninfer_jax.server")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server; returns the exit status."""
    configure_logging("info")
    try:
        resolution = resolve(
            ServeConfig, sys.argv[1:] if arguments is None else arguments, program=PROGRAM
        )
        if resolution.message is not None:
            print(resolution.message)
            return 0
        config = check(resolution)
        configure_logging(config.log_level)
        for line in warnings(resolution.given):
            _log.warning(line)
        listener = listen(config.host, config.port)
    except NInferError as error:
        _log.critical(error.message)
        return 1
    if resolution.file is not None:
        _log.info(f"config | {resolution.file.name} | sha256 {resolution.file.sha256}")
    is_demo = resolution.config.model == DEMO
    announce = print_demo_question if is_demo else lambda url, model_id: None
    return run_server(config, listener, lambda log: build(config, log), announce=announce)


def check(resolution: Resolution[ServeConfig]) -> ServeConfig:
    """The configuration with the path of its artifact; raises `ConfigError`."""
    config = resolution.config
    check_combinations(config)
    check_environment(os.environ)
    artifact = find_artifact(config.model)
    check_available(
        resolution.given, source=None if resolution.file is None else resolution.file.name
    )
    return dataclasses.replace(config, model=str(artifact))


def build(config: ServeConfig, log: Callable[[str], None]) -> ServedModel:
    """Loads the model. The engine, and with it JAX, is imported only here."""
    from ninfer_jax.engine.build import build_engine

    return build_engine(config, log=log)


def print_demo_question(url: str, model_id: str) -> None:
    """Prints one command on stdout that asks the demo a question."""
    body = json.dumps({"model": model_id, "messages": [{"role": "user", "content": DEMO_QUESTION}]})
    print(
        f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
