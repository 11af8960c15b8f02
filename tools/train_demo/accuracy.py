"""Held-out exact match of the demo model, through the HTTP server.

    python -m ninfer_jax.serve --config demo.py          # in one terminal
    python -m tools.train_demo.accuracy --url http://127.0.0.1:8080 --samples 200

Temperature 0. The story task has no single right answer and is left out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import sys
from collections.abc import Callable

import httpx

from ninfer_jax.demo.generator import SCORED, generate
from ninfer_jax.demo.samples import Sample, messages_of
from ninfer_jax.demo.scoring import correct

SEED = 20_000
GOALS = {"reasoning": 0.95, "structured": 0.95, "chinese": 0.95, "tools": 0.90}


def ask(client: httpx.Client, model: str, sample: Sample) -> bool:
    """Sends one sample; True if the answer is exactly right."""
    body = {
        "model": model,
        "messages": messages_of(sample, with_answer=False),
        "temperature": 0,
        "max_tokens": 200,
    }
    if sample.tools:
        body["tools"] = list(sample.tools)
    for message in body["messages"]:
        for index, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"call_{index:016x}"
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        if message["role"] == "tool":
            message["tool_call_id"] = f"call_{0:016x}"
    reply = client.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    return correct(sample, reply.json()["choices"][0]["message"])


def measure(
    url: str, samples: int, parallel: int, wrong: Callable[[str, Sample], None] = lambda *_: None
) -> dict[str, float]:
    """Share of exact answers per task; calls `wrong` with every sample that failed."""
    scores = {}
    with (
        httpx.Client(base_url=url, timeout=120) as client,
        concurrent.futures.ThreadPoolExecutor(parallel) as pool,
    ):
        model = client.get("/v1/models").json()["data"][0]["id"]
        for task in GOALS:
            chosen = list(itertools.islice(generate(SCORED[task], "held_out", SEED), samples))
            right = list(pool.map(lambda sample: ask(client, model, sample), chosen))
            scores[task] = sum(right) / len(right)
            for sample, good in zip(chosen, right, strict=True):
                if not good:
                    wrong(task, sample)
    return scores


def main() -> None:
    """Prints accuracy per task; exit status 1 if one is below its goal."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    def show(task: str, sample: Sample) -> None:
        print(f"wrong: {task} {sample.key}", file=sys.stderr)

    scores = measure(arguments.url, arguments.samples, arguments.parallel, show)
    if arguments.json:
        print(json.dumps(scores))
    else:
        for task, score in scores.items():
            print(f"{task:11s} {100 * score:5.1f} % of {arguments.samples}")
    if any(scores[task] < goal for task, goal in GOALS.items()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
