"""Speed of the demo model in this engine, one request at a time, as `configs/demo.py` serves it.

    python -m bench.engine_demo --out measured.json [--start]

Measured by the engine's own windows (`docs/serving.md`): decode tok/s is
(completion - 1) / sum of round times. The share of a round outside the device program is
1 - (time of a round inside the loop x rounds) / (last token - first token); the time of a
round inside the loop is the slope between a long and a short dispatch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ninfer_jax.artifact import open_artifact
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.config import ServeConfig
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.config.resolve import resolve
from ninfer_jax.engine.build import BuiltEngine, build_engine, build_programs, find_device
from ninfer_jax.engine.request import Failed, Finished, Request, SamplingParams
from ninfer_jax.engine.units import DecodeRow
from ninfer_jax.model.config import text_config
from ninfer_jax.text.output import OutputDecoder

GREEDY = SamplingParams(temperature=0.0)


def configuration() -> ServeConfig:
    """The demo's own configuration."""
    return resolve(ServeConfig, ["--config", "demo.py"], program="bench").config


def run(built: BuiltEngine, prompt: tuple[int, ...], new_tokens: int) -> Finished:
    """One request without a stop token, to its output limit."""
    ended = threading.Event()
    outcome = []

    def sink(event) -> None:
        if isinstance(event, (Finished, Failed)):
            outcome.append(event)
            ended.set()

    decoder = OutputDecoder(built.tokenizer, thinking_open=False)
    built.engine.submit(Request(1, prompt, GREEDY, new_tokens, frozenset(), decoder), sink)
    ended.wait()
    if isinstance(outcome[0], Failed):
        raise outcome[0].error
    return outcome[0]


def prompt_of(built: BuiltEngine, length: int) -> tuple[int, ...]:
    """Random ordinary ids."""
    rng = random.Random(length)
    return tuple(rng.randrange(256, 900) for _ in range(length))


class Loop:
    """The decode program by itself: seconds of one round inside the device loop."""

    def __init__(self):
        config = configuration()
        artifact = open_artifact(find_artifact(config.model))
        text = text_config(artifact.components["text"].config, check_artifact(artifact))
        self._programs = build_programs(config, artifact, text, find_device(0), lambda line: None)
        self._row = DecodeRow(
            slot=0,
            pages=list(range(16)),
            token=300,
            position=200,
            limit=1000,
            stop_token_ids=frozenset(),
            sampling=GREEDY,
        )

    def round_seconds(self) -> float:
        """The slope between a dispatch of 32 rounds and one of 8, least of three."""
        taken = {rounds: [] for rounds in (8, 32)}
        for _ in range(3):
            for rounds, seconds in taken.items():
                started = time.perf_counter()
                self._programs.decode([self._row], rounds).result()
                seconds.append(time.perf_counter() - started)
        return (min(taken[32]) - min(taken[8])) / 24


def decode_speed(built: BuiltEngine, loop: Loop, repeats: int) -> dict[str, float]:
    """Decode tok/s over 256 tokens behind 64, and the share outside the device program.

    The share is taken of a round inside the loop measured right before and right after each
    request, because the speed of a machine drifts.
    """
    speeds, shares = [], []
    before = loop.round_seconds()
    for _ in range(repeats):
        done = run(built, prompt_of(built, 64), 257)
        after = loop.round_seconds()
        tokens = done.usage.completion_tokens - 1
        speeds.append(tokens / done.timing.decode)
        shares.append(1 - tokens * (before + after) / 2 / done.timing.wall_predicted)
        before = after
    return {
        "decode_tok_s": statistics.median(speeds),
        "outside_share": statistics.median(shares),
        "outside_share_min": min(shares),
        "outside_share_max": max(shares),
    }


def prefill_speed(built: BuiltEngine, length: int, repeats: int) -> dict[str, float]:
    """Prefill tok/s and time to the first token for a prompt length."""
    speeds, first = [], []
    for _ in range(repeats):
        done = run(built, prompt_of(built, length), 1)
        speeds.append(length / done.timing.prefill)
        first.append(done.timing.first_token)
    return {"prefill_tok_s": statistics.median(speeds), "ttft_s": statistics.median(first)}


def start_seconds(cache: str) -> float:
    """Seconds from the start of a server process to its "listening" line."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ninfer_jax.serve", "--config", "demo.py", "--port", "18973"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache},
    )
    try:
        for line in process.stderr:
            if "listening" in line:
                return time.perf_counter() - started
        raise RuntimeError(f"the server ended with status {process.wait()}")
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Measures and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--start", action="store_true", help="also time the start of the server")
    arguments = parser.parse_args()
    values = {}
    if arguments.start:
        with tempfile.TemporaryDirectory() as cache:
            values["start_cold_s"] = start_seconds(cache)
            values["start_warm_s"] = start_seconds(cache)
    # Before the engine: what is compiled behind it counts as a recompilation.
    loop = Loop()
    built = build_engine(configuration(), log=lambda line: print(line, file=sys.stderr))
    run(built, prompt_of(built, 64), 32)
    values |= decode_speed(built, loop, arguments.repeats)
    for length in (128, 512, 2048):
        measured = prefill_speed(built, length, arguments.repeats)
        values |= {f"{name}_{length}": value for name, value in measured.items()}
    values["recompilations"] = built.engine.counters().recompilations
    built.engine.close()
    arguments.out.write_text(json.dumps(values, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
