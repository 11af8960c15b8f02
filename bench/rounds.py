"""What a drafted round costs and where its time goes.

    python -m bench.rounds [--quick] [--json FILE]

Two comparisons with plain decoding, request by request in turns, greedy, one request at a time,
speeds by the engine's own windows:

* `demo`: held-out sums through the demo's server, DFlash2 with K = 7. The model fits into the
  caches, so eight columns cost several times what one does;
* `memory_bound`: a random model of 129 million parameters (`memory_bound.py`), K = 7, whose
  drafts are replayed with 4.5 tokens per round.

Then each is run once more under the profiler (`round_trace.py`).
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import threading
from collections.abc import Callable
from pathlib import Path

import jax

from bench import memory_bound
from bench.machine import RESULTS, machine, write_result
from bench.round_trace import SECTIONS, seconds_by_section, sections_of, traced_operations
from bench.served_demo import ServedDemo
from ninfer_jax.artifact import open_artifact
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.demo.generator import SCORED, generate
from ninfer_jax.engine.build import read_front_end, use_compilation_cache
from ninfer_jax.engine.engine import Engine
from ninfer_jax.engine.programs import DevicePrograms
from ninfer_jax.engine.request import Delta, Failed, Finished, Request, SamplingParams
from ninfer_jax.text.output import OutputDecoder
from ninfer_jax.text.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0.0)
SEED = 31_000

Ask = Callable[[int], Finished]
"""Runs the n-th request of a workload."""


def decode_speed(done: Finished) -> float:
    """Tokens behind the first, per second of decode rounds."""
    return (done.usage.completion_tokens - 1) / done.timing.decode


def tokens_per_round(done: list[Finished]) -> float:
    """Of the rounds that drafted."""
    rounds = sum(one.speculation.rounds for one in done)
    return 1 + sum(one.speculation.accepted_tokens for one in done) / max(rounds, 1)


def compare(plain: Ask, drafted: Ask, requests: int) -> dict[str, float]:
    """Both take turns; the ratio is the median over the requests."""
    plain(0), drafted(0)
    pairs = [(plain(number), drafted(number)) for number in range(requests)]
    speeds = [(decode_speed(one), decode_speed(other)) for one, other in pairs]
    return {
        "plain_tok_s": statistics.median(one for one, _ in speeds),
        "drafted_tok_s": statistics.median(other for _, other in speeds),
        "times_plain": statistics.median(other / one for one, other in speeds),
        "tokens_per_round": tokens_per_round([other for _, other in pairs]),
    }


def profile(ask: Ask, requests: int, program: jax.stages.Compiled) -> dict[str, float]:
    """Milliseconds of a round by section, over some requests.

    `outside` is what lies between the first and the last token and in no operation of the
    program: the host's work between dispatches, and launching. Tracing costs time itself, a
    microsecond or so an operation: with small operations parts compare, sums do not.
    """
    module = program.as_text().split(None, 2)[1].rstrip(",")
    done, operations = traced_operations(lambda: [ask(n) for n in range(requests)], module)
    spent = seconds_by_section(operations, sections_of(program))
    window = sum(one.timing.wall_predicted for one in done)
    rounds = sum(one.timing.rounds for one in done)
    spent["outside"] = max(window - sum(spent.values()), 0.0)
    return {name: 1e3 * seconds / rounds for name, seconds in spent.items()}


def greedy_program(programs: DevicePrograms) -> jax.stages.Compiled:
    """The decode program of one greedy request."""
    return programs.compiled("decode", programs.lane_buckets[0], True)


def demo(requests: int) -> dict:
    """Comparison and profiles on the demo."""
    samples = list(itertools.islice(generate(SCORED["reasoning"], "held_out", SEED), requests))

    def asking(server: ServedDemo) -> Ask:
        return lambda number: server.ask(samples[number], 0.0, SEED).outcome

    servers = [ServedDemo(), ServedDemo("--spec", "dflash2", "--draft-tokens", "7")]
    asks = [asking(server) for server in servers]
    report = compare(*asks, requests)
    for name, server, ask in zip(("plain_ms", "drafted_ms"), servers, asks, strict=True):
        report[name] = profile(ask, min(requests, 10), greedy_program(server.programs))
        server.close()
    return report


def generated(engine: Engine, tokenizer: Tokenizer, prompt: list[int]) -> tuple[Finished, list]:
    """One request to its output limit: outcome and tokens."""
    ended, tokens, outcome = threading.Event(), [], []

    def sink(event) -> None:
        if isinstance(event, Delta):
            tokens.extend(event.token_ids)
        if isinstance(event, (Finished, Failed)):
            outcome.append(event)
            ended.set()

    decoder = OutputDecoder(tokenizer, thinking_open=False)
    limit = memory_bound.NEW_TOKENS
    engine.submit(Request(1, tuple(prompt), GREEDY, limit, frozenset(), decoder), sink)
    ended.wait()
    if isinstance(outcome[0], Failed):
        raise outcome[0].error
    return outcome[0], tokens


def large(requests: int) -> dict:
    """Comparison and profiles on the random model."""
    tokenizer, _ = read_front_end(open_artifact(find_artifact("demo")), None)
    model = memory_bound.Model()
    rng = random.Random(SEED)
    prompt = [rng.randrange(256, 900) for _ in range(memory_bound.PROMPT)]
    programs = [model.programs(None)]
    engines = [memory_bound.engine_over(programs[0])]
    _, text = generated(engines[0], tokenizer, prompt)
    programs.append(model.programs(memory_bound.replaying(len(prompt), text)))
    engines.append(memory_bound.engine_over(programs[1]))
    same = generated(engines[1], tokenizer, prompt)[1] == text

    def asking(engine: Engine) -> Ask:
        return lambda number: generated(engine, tokenizer, prompt)[0]

    asks = [asking(engine) for engine in engines]
    report = {"weights_mib": model.nbytes / 2**20, "same_text": same} | compare(*asks, requests)
    report["plain_gb_s"] = model.nbytes * report["plain_tok_s"] / 1e9
    for name, compiled, ask in zip(("plain_ms", "drafted_ms"), programs, asks, strict=True):
        report[name] = profile(ask, 1, greedy_program(compiled))
    for engine in engines:
        engine.close()
    return report


def print_report(name: str, report: dict, goal: float) -> None:
    """One comparison."""
    reached = "" if report["times_plain"] >= goal else ", missed"
    print(
        f"{name}: plain {report['plain_tok_s']:.1f} tok/s | drafted "
        f"{report['drafted_tok_s']:.1f} tok/s | {report['times_plain']:.2f}x (goal {goal:g}x"
        f"{reached}) | tokens/round {report['tokens_per_round']:.2f}"
    )
    for kind in ("plain_ms", "drafted_ms"):
        parts = " | ".join(f"{part} {report[kind][part]:.3f}" for part in (*SECTIONS, "outside"))
        print(f"  ms of a round, {kind.removesuffix('_ms'):8s} {parts}", flush=True)


def main() -> None:
    """Measures, prints, stores."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="few requests")
    parser.add_argument("--json", type=Path, default=RESULTS / "rounds.json")
    options = parser.parse_args()
    use_compilation_cache()
    report: dict = {"machine": machine("jax", "jaxlib")}
    report["demo"] = demo(5 if options.quick else 40)
    print_report("demo", report["demo"], 1.1)
    report["memory_bound"] = large(2 if options.quick else 7)
    print_report("memory_bound", report["memory_bound"], 1.8)
    write_result(options.json, report)
    print(options.json)


if __name__ == "__main__":
    main()
