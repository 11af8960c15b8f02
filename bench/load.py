"""Seconds from opening weights to having them on the device: artifact and Orbax checkpoint.

    python -m bench.load --folder /some/disk [--layers 4]

A synthetic text model of the 27B's widths, NVFP4 and FP8 kept packed as on an accelerator. Each
load is a process of its own, alternating; files are in the page cache, or dropped from it first.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.convert import drop_cached
from ninfer_jax.checkpoint.convert import artifact_to_checkpoint
from tools.make_synthetic_artifact import main as make_synthetic_artifact

TURNS = 3


def load(path: Path) -> None:
    """Loads once in this process and prints the seconds, imports and device start-up excluded."""
    import jax
    import jax.numpy as jnp

    from ninfer_jax.artifact.requirements import check_artifact
    from ninfer_jax.checkpoint.from_artifact import load_weights
    from ninfer_jax.checkpoint.open import open_weights
    from ninfer_jax.model.config import text_config
    from ninfer_jax.model.decoder import build_decoder

    if path.is_dir():
        import orbax.checkpoint.experimental.v1  # noqa: F401  (its import is not the load)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    started = time.perf_counter()
    with open_weights(path, sharding) as artifact:
        text = text_config(artifact.components["text"].config, check_artifact(artifact))
        dtype = jnp.dtype(jnp.bfloat16)
        _, specs = build_decoder(text, dtype)
        weights = load_weights(artifact, specs, dtype, "packed", sharding)
    jax.block_until_ready(weights)
    seconds = time.perf_counter() - started
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    print(json.dumps({"seconds": seconds, "bytes": size}))


def measured(path: Path, cold: bool) -> dict:
    """One load in a process of its own."""
    if cold:
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                drop_cached(file)
    command = [sys.executable, "-m", "bench.load", "--load", str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load(options.load)
        return
    work = options.folder / "ninfer_load"
    work.mkdir(parents=True, exist_ok=True)
    artifact, checkpoint = work / "text.ninfer", work / "orbax"
    arguments = ["--profile", "nvfp4", "--layers", str(options.layers), "--components", "text"]
    if make_synthetic_artifact([str(artifact), *arguments]):
        raise SystemExit(1)
    artifact_to_checkpoint(artifact, checkpoint)
    for cold in (False, True):
        turns = [[measured(path, cold) for path in (artifact, checkpoint)] for _ in range(TURNS)]
        size = turns[0][0]["bytes"]
        first, second = (
            statistics.median(turn[side]["seconds"] for turn in turns) for side in (0, 1)
        )
        ratio = statistics.median(turn[0]["seconds"] / turn[1]["seconds"] for turn in turns)
        print(
            f"{'cold' if cold else 'warm'}  {size / 1e9:.2f} GB of weights | artifact {first:.2f} s"
            f" | Orbax {second:.2f} s | {ratio:.2f}x"
        )
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
