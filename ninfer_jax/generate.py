"""Answers one prompt: the answer on stdout, everything else on stderr.

python -m ninfer_jax.generate --config demo.py --prompt "What is 47 + 38?"
python -m ninfer_jax.generate FILE.ninfer --messages conversation.json --max-new 512
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Sequence

from ninfer_jax.config import GenerateConfig, ServeConfig
from ninfer_jax.config.checks import (
    check_available,
    check_combinations,
    find_artifact,
    warnings,
)
from ninfer_jax.config.generate import check_generate
from ninfer_jax.config.resolve import Resolution, resolve
from ninfer_jax.errors import NInferError
from ninfer_jax.server.logs import configure_logging
from ninfer_jax.server.one_shot import answer, prepare_one_shot, read_conversation
from ninfer_jax.server.service import ServedModel
from ninfer_jax.server.summary import summary

PROGRAM = "python -m ninfer_jax.generate"
_log = logging.getLogger("ninfer_jax.generate")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    configure_logging("info")
    try:
        resolution = resolve(
            GenerateConfig, sys.argv[1:] if arguments is None else arguments, program=PROGRAM
        )
        if resolution.message is not None:
            print(resolution.message)
            return 0
        config = check(resolution)
        configure_logging(config.log_level)
        for line in warnings(resolution.given):
            _log.warning(line)
        return run(config)
    except NInferError as error:
        _log.critical(error.message)
        return 1
    except KeyboardInterrupt:
        return 130


def check(resolution: Resolution[GenerateConfig]) -> GenerateConfig:
    """The configuration with the path of its artifact; raises `ConfigError`."""
    config = resolution.config
    check_generate(config)
    check_combinations(config.engine_config())
    artifact = find_artifact(config.model)
    check_available(
        resolution.given, source=None if resolution.file is None else resolution.file.name
    )
    return dataclasses.replace(config, model=str(artifact))


def run(config: GenerateConfig) -> int:
    """Loads the model, answers, prints the summary."""
    conversation = read_conversation(config)
    model = build(config.engine_config(), _log.info)
    try:
        request = prepare_one_shot(
            config,
            conversation,
            tokenizer=model.tokenizer,
            template=model.template,
            max_context=model.info.max_context,
        )
        finished, output = answer(model.engine, request, stdout=sys.stdout, stderr=sys.stderr)
        shown_ids = output.ids if config.print_token_ids else None
        print(summary(finished, model.engine.counters(), shown_ids), file=sys.stderr)
        if config.show_drafts:
            print("\naccepted drafts in brackets:", file=sys.stderr)
            print(output.marked(model.tokenizer), file=sys.stderr)
    finally:
        model.engine.close()
    return 0


def build(config: ServeConfig, log: Callable[[str], None]) -> ServedModel:
    """Loads the model. The engine, and with it JAX, is imported only here."""
    from ninfer_jax.engine.build import build_engine

    return build_engine(config, log=log)


if __name__ == "__main__":
    sys.exit(main())
