"""Speed and memory of converting a 27B artifact to an Orbax checkpoint, beside a plain copy.

    python -m bench.convert --folder /some/disk                full size, about 48 GB of disk
    python -m bench.convert --folder /some/disk --layers 4     a smaller run

On a synthetic artifact with the published inventory, in one run on one disk: `cp` with fsync, the
conversion (read, decode to the checkpoint's layout, write, fsync, SHA-256 of the source), `cp`
again, and the proof of the way back in memory. The source is dropped from the page cache before
each. Memory is RssAnon of the converting process: mapped file pages are not its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.machine import RESULTS, machine, write_result
from ninfer_jax.artifact.staging import require_space, sync_path
from tools.make_synthetic_artifact import main as make_synthetic_artifact

GOAL_SHARE, GOAL_GIB = 0.6, 3.0


def drop_cached(path: Path) -> None:
    """Asks the system to forget a file's pages, written or read."""
    sync_path(path)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def copy_seconds(source: Path, target: Path) -> float:
    """Seconds of `cp --reflink=never` and fsync."""
    drop_cached(source)
    started = time.perf_counter()
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    sync_path(target)
    taken = time.perf_counter() - started
    target.unlink()
    return taken


def watched(command: list[str]) -> tuple[float, int]:
    """Runs a command; returns seconds and the peak of RssAnon in bytes."""
    started = time.perf_counter()
    process = subprocess.Popen(command)
    status = Path(f"/proc/{process.pid}/status")
    peak = 0
    while process.poll() is None:
        try:
            lines = status.read_text(encoding="ascii").splitlines()
        except OSError:
            break
        for line in lines:
            if line.startswith("RssAnon:"):
                peak = max(peak, 1024 * int(line.split()[1]))
        time.sleep(0.02)
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - started, peak


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk to use")
    parser.add_argument("--profile", default="nvfp4", choices=("nvfp4", "groupwise-int"))
    parser.add_argument("--layers", type=int, help="text layers, where fewer than 64")
    parser.add_argument("--keep", action="store_true", help="keep the artifact and checkpoint")
    options = parser.parse_args()
    work = options.folder / "ninfer_convert"
    work.mkdir(parents=True, exist_ok=True)
    source, copy, target = (work / name for name in ("source.ninfer", "copy", "orbax"))
    shutil.rmtree(target, ignore_errors=True)
    if not source.exists():
        layers = ["--layers", str(options.layers)] if options.layers else []
        started = time.perf_counter()
        if make_synthetic_artifact([str(source), "--profile", options.profile, *layers]):
            raise SystemExit(1)
        print(f"synthetic artifact written in {time.perf_counter() - started:.0f} s")
    size = source.stat().st_size
    require_space(work, size + size // 20)
    tool = [sys.executable, "tools/convert_artifact.py", str(source), str(target)]
    copies = [copy_seconds(source, copy)]
    drop_cached(source)
    seconds, peak = watched(tool)
    copies.append(copy_seconds(source, copy))
    for file in target.rglob("*"):
        if file.is_file():
            drop_cached(file)
    drop_cached(source)
    proof, proof_peak = watched([*tool, "--verify"])
    share = sum(copies) / 2 / seconds
    values = {
        "machine": machine("orbax-checkpoint", "jax"),
        "profile": options.profile,
        "layers": options.layers or 64,
        "bytes": size,
        "copy_s": copies,
        "convert_s": seconds,
        "speed_of_copy": share,
        "peak_rss_anon_bytes": peak,
        "verify_s": proof,
        "verify_peak_rss_anon_bytes": proof_peak,
    }
    speed = size / 1e6
    print(f"artifact                  {size:,} bytes, {options.profile}")
    print(f"cp + fsync                {copies[0]:.1f} s, {copies[1]:.1f} s")
    print(f"convert to Orbax + fsync  {seconds:.1f} s, {speed / seconds:.0f} MB/s")
    print(f"speed of cp               {100 * share:.0f} % (goal {100 * GOAL_SHARE:.0f} %)")
    print(f"peak RssAnon              {peak / 2**30:.2f} GiB (goal {GOAL_GIB:.0f} GiB)")
    print(f"proof of the way back     {proof:.1f} s, {proof_peak / 2**30:.2f} GiB")
    if not options.keep:
        shutil.rmtree(work)
    if options.layers is None:
        write_result(RESULTS / "convert.json", values)


if __name__ == "__main__":
    main()
