"""Speed of the demo model in transformers on torch CPU; runs in the oracle environment.

    .venv-oracle/bin/python -m bench.transformers_demo --model DIR --out measured.json

DIR is the demo exported by `ninfer_jax/checkpoint/to_huggingface.py`. One request, greedy,
with cache, f32 (its faster type on a CPU without bf16 units).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch
import transformers


def main() -> None:
    """Measures decode over 64 tokens behind 64, and prefill at three lengths."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    model = transformers.Qwen3_5ForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    model.eval()

    def prompt(length: int) -> torch.Tensor:
        rng = random.Random(length)
        return torch.tensor([[rng.randrange(256, 900) for _ in range(length)]])

    def seconds(length: int, new_tokens: int) -> float:
        ids = prompt(length)
        started = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - started

    values = {"torch": torch.__version__, "transformers": transformers.__version__}
    with torch.inference_mode():
        seconds(64, 8)
        steps = [(seconds(64, 65) - seconds(64, 1)) / 64 for _ in range(arguments.repeats)]
        values["decode_tok_s"] = 1 / statistics.median(steps)
        for length in (128, 512, 2048):
            first = statistics.median(seconds(length, 1) for _ in range(arguments.repeats))
            values[f"prefill_tok_s_{length}"] = length / first
            values[f"ttft_s_{length}"] = first
    arguments.out.write_text(json.dumps(values, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
