"""One report: this engine and transformers on the same demo weights, on this machine.

    make bench

Every row stands beside its ratio to the peer or to its goal. The two programs take turns, each
alone, and a ratio is the median over the turns: the speed of a machine drifts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.machine import RESULTS, machine, write_result
from ninfer_jax.artifact import open_artifact
from ninfer_jax.checkpoint.to_huggingface import export_artifact
from ninfer_jax.config.checks import find_artifact

TURNS = 3


def measure(command: list[str], out: Path) -> dict:
    """Runs a benchmark program and reads what it wrote."""
    subprocess.run([*command, "--out", str(out)], check=True)
    return json.loads(out.read_text(encoding="utf-8"))


def medians(turns: list[dict]) -> dict:
    """The median of each number over the turns that have it; other values from the first."""
    values = dict(turns[0])
    for name, value in values.items():
        if not isinstance(value, str):
            values[name] = statistics.median(turn[name] for turn in turns if name in turn)
    return values


def ratios(ours: list[dict], peer: list[dict]) -> dict[str, float]:
    """How many times the peer's speed, the median over the turns."""

    def times(mine: dict, theirs: dict, name: str) -> float:
        # A longer time is worse, a higher speed better.
        ratio = mine[name] / theirs[name]
        return 1 / ratio if name.startswith("ttft") else ratio

    shared = [name for name in peer[0] if name in ours[0]]
    return {
        name: statistics.median(times(*turn, name) for turn in zip(ours, peer, strict=True))
        for name in shared
    }


def table(ours: dict, peer: dict, times: dict[str, float]) -> list[tuple[str, str, str, str]]:
    """Rows of (what, here, beside, verdict)."""

    def against(name: str, goal: float) -> str:
        missed = "" if times[name] >= goal else ", missed"
        return f"{times[name]:.2f}x (goal {goal:g}x{missed})"

    rows = [
        (
            "decode, 1 request, tok/s",
            f"{ours['decode_tok_s']:.1f}",
            f"transformers {peer['decode_tok_s']:.1f}",
            against("decode_tok_s", 3),
        )
    ]
    for length in (128, 512, 2048):
        speed, first = f"prefill_tok_s_{length}", f"ttft_s_{length}"
        rows += [
            (
                f"prefill {length}, tok/s",
                f"{ours[speed]:.0f}",
                f"transformers {peer[speed]:.0f}",
                against(speed, 1),
            ),
            (
                f"time to first token {length}, ms",
                f"{1e3 * ours[first]:.1f}",
                f"transformers {1e3 * peer[first]:.1f}",
                f"{times[first]:.2f}x",
            ),
        ]

    def goal(value: float, limit: float) -> str:
        return "reached" if value <= limit else "missed"

    share, warm = ours["outside_share"], ours["start_warm_s"]
    rows += [
        (
            "round outside the device program",
            f"{100 * share:.1f} %",
            "goal 15 %",
            goal(share, 0.15),
        ),
        ("start to listening, cold, s", f"{ours['start_cold_s']:.1f}", "", ""),
        ("start to listening, warm, s", f"{warm:.1f}", "goal 8", goal(warm, 8)),
        ("recompilations", str(ours["recompilations"]), "goal 0", goal(ours["recompilations"], 0)),
    ]
    return rows


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--peer-python", default=".venv-oracle/bin/python")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        export_artifact(open_artifact(find_artifact("demo")), work / "model")
        engine = [sys.executable, "-m", "bench.engine_demo"]
        other = [arguments.peer_python, "-m", "bench.transformers_demo"]
        other += ["--model", str(work / "model")]
        our_turns, peer_turns = [], []
        for turn in range(TURNS):
            start = ["--start"] if turn == 0 else []
            our_turns.append(measure([*engine, *start], work / "ours.json"))
            peer_turns.append(measure(other, work / "peer.json"))
    ours, peer = medians(our_turns), medians(peer_turns)
    times = ratios(our_turns, peer_turns)
    head = machine(
        "jax",
        "flax",
        "numpy",
        model="demo, bf16 weights and KV, no drafting, greedy, 1 request",
        torch=peer["torch"],
        transformers=peer["transformers"],
    )
    print(" | ".join(f"{key} {value}" for key, value in head.items()))
    for what, here, beside, verdict in table(ours, peer, times):
        print(f"{what:36s} {here:>10s}   {beside:24s} {verdict}")
    report = {"machine": head, "engine": ours, "transformers": peer, "ratios": times}
    write_result(RESULTS / "demo_cpu.json", report)


if __name__ == "__main__":
    main()
