"""One report: this engine and transformers on the same demo weights, on this machine.

    make bench

Every row stands beside its ratio to the peer or to its goal. The two programs run one after
the other, each alone.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from ninfer_jax.checkpoint.to_huggingface import export_artifact

from ninfer_jax.artifact import open_artifact
from ninfer_jax.config.checks import find_artifact

RESULTS = Path("bench/results")


def measure(command: list[str], out: Path) -> dict:
    """Runs a benchmark program and reads what it wrote."""
    subprocess.run([*command, "--out", str(out)], check=True)
    return json.loads(out.read_text(encoding="utf-8"))


def processor() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def table(ours: dict, peer: dict) -> list[tuple[str, str, str, str]]:
    """Rows of (what, here, beside, verdict)."""

    def ratio(value: float, other: float, goal: float) -> str:
        times = value / other
        return f"{times:.2f}x (goal {goal:g}x{'' if times >= goal else ', missed'})"

    rows = [
        (
            "decode, 1 request, tok/s",
            f"{ours['decode_tok_s']:.1f}",
            f"transformers {peer['decode_tok_s']:.1f}",
            ratio(ours["decode_tok_s"], peer["decode_tok_s"], 3),
        )
    ]
    for length in (128, 512, 2048):
        mine, theirs = ours[f"prefill_tok_s_{length}"], peer[f"prefill_tok_s_{length}"]
        rows.append(
            (
                f"prefill {length}, tok/s",
                f"{mine:.0f}",
                f"transformers {theirs:.0f}",
                ratio(mine, theirs, 1),
            )
        )
        rows.append(
            (
                f"time to first token {length}, ms",
                f"{1e3 * ours[f'ttft_s_{length}']:.1f}",
                f"transformers {1e3 * peer[f'ttft_s_{length}']:.1f}",
                f"{peer[f'ttft_s_{length}'] / ours[f'ttft_s_{length}']:.2f}x",
            )
        )

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
        ours = measure([sys.executable, "-m", "bench.engine_demo"], work / "ours.json")
        peer = measure(
            [
                arguments.peer_python,
                "-m",
                "bench.transformers_demo",
                "--model",
                str(work / "model"),
            ],
            work / "peer.json",
        )
    versions = {name: importlib.metadata.version(name) for name in ("jax", "flax", "numpy")}
    head = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "model": "demo, bf16 weights and KV, no drafting, greedy, 1 request",
        **versions,
        "torch": peer["torch"],
        "transformers": peer["transformers"],
    }
    print(" | ".join(f"{key} {value}" for key, value in head.items()))
    for what, here, beside, verdict in table(ours, peer):
        print(f"{what:36s} {here:>10s}   {beside:24s} {verdict}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "demo_cpu.json").write_text(
        json.dumps({"machine": head, "engine": ours, "transformers": peer}, indent=1) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
