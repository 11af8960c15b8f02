"""Encoding, packing and unpacking speed beside a memory copy, on this machine.

    python -m bench.encoders [--rows 17408] [--columns 5120] [--repeats 5]

Encoders count MB (10^6) of BF16 input a second, packing and unpacking those of stored bytes. The
ratio is to `memcpy`, a copy of the BF16 matrix into memory that is already there: the roof. The
copy takes turns with every job, and all figures are the best of several: others use the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.machine import RESULTS, machine, write_result
from ninfer_jax.artifact import (
    encode_fp8_rows,
    encode_grouped,
    encode_nvfp4,
    nvfp4_divisor,
    pack_object,
    unpack_object,
)
from ninfer_jax.artifact.direct import bfloat16_words
from ninfer_jax.artifact.formats import FP8, GROUPED_FORMATS, NVFP4

MEGABYTE = 1e6


def normal_words(rows: int, columns: int) -> np.ndarray:
    """BF16 words of a matrix like a layer's: normal numbers of deviation 0.02."""
    generator = np.random.default_rng(0)
    words = np.empty((rows, columns), np.uint16)
    for begin in range(0, rows, 512):
        part = words[begin : begin + 512]
        part[:] = bfloat16_words(generator.standard_normal(part.shape, np.float32) * 0.02)
    return words


def encoder(format: str) -> Callable[[np.ndarray], tuple]:
    """The encoder of a format, from BF16 words to its fields in order."""
    if format == NVFP4:
        return encode_nvfp4
    if format == FP8:
        return encode_fp8_rows
    return lambda words: encode_grouped(words, format)


class Clock:
    """Times jobs in turns with a memory copy and keeps the best time of each."""

    def __init__(self, words: np.ndarray, repeats: int):
        self.words, self.repeats = words, repeats
        self.target = np.zeros_like(words)
        self.copy_s = float("inf")

    def best(self, job: Callable[[], object]) -> float:
        """Seconds of the fastest run."""
        fastest = float("inf")
        for _ in range(self.repeats):
            begin = time.perf_counter()
            np.copyto(self.target, self.words)
            middle = time.perf_counter()
            job()
            fastest = min(fastest, time.perf_counter() - middle)
            self.copy_s = min(self.copy_s, middle - begin)
        return fastest


def measure(words: np.ndarray, repeats: int) -> dict[str, dict[str, float]]:
    """MB/s by format and job, and the copy under `memcpy`."""
    clock = Clock(words, repeats)
    source = words.nbytes / MEGABYTE
    speeds: dict[str, dict[str, float]] = {}
    for format in (NVFP4, FP8, *GROUPED_FORMATS):
        encode = encoder(format)
        fields = dict(zip(("codes", "scales", "divisor"), encode(words), strict=False))
        payload = pack_object(format, fields, words.shape)
        stored = len(payload) / MEGABYTE
        # The lambdas run before the loop moves on.
        pack_s = clock.best(lambda: pack_object(format, fields, words.shape))  # noqa: B023
        unpack_s = clock.best(lambda: unpack_object(format, words.shape, payload))  # noqa: B023
        del fields, payload
        speeds[format] = {
            "encode": source / clock.best(lambda: encode(words)),  # noqa: B023
            "pack": stored / pack_s,
            "unpack": stored / unpack_s,
        }
    speeds[NVFP4]["divisor"] = source / clock.best(lambda: nvfp4_divisor([words]))
    speeds["memcpy"] = {"copy": source / clock.copy_s}
    return speeds


def main() -> None:
    """Print the table and write `encoders.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=17408)
    parser.add_argument("--columns", type=int, default=5120)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "encoders.json")
    options = parser.parse_args()

    speeds = measure(normal_words(options.rows, options.columns), options.repeats)
    roof = speeds["memcpy"]["copy"]
    print(f"{'MB/s (ratio to memcpy)':24}{'encode':>16}{'pack':>16}{'unpack':>16}{'divisor':>16}")
    for name, row in speeds.items():
        if name != "memcpy":
            cells = (f"{speed:8.0f} ({speed / roof:.3f})" for speed in row.values())
            print(f"{name:24}" + "".join(f"{cell:>16}" for cell in cells))
    print(f"{'memcpy':24}{roof:8.0f}")

    matrix = f"[{options.rows}, {options.columns}] bf16, best of {options.repeats}"
    head = machine("numpy", "ml_dtypes", matrix=matrix)
    rounded = {name: {job: round(v, 1) for job, v in row.items()} for name, row in speeds.items()}
    ratios = {
        name: {job: round(v / roof, 4) for job, v in row.items()} for name, row in speeds.items()
    }
    report = {"machine": head, "mb_per_s": rounded, "ratio_to_memcpy": ratios}
    write_result(options.out, report)


if __name__ == "__main__":
    main()
