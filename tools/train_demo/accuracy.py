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

import httpx

from ninfer_jax.demo.generator import SCORED, generate
from ninfer_jax.demo.samples import Sample, messages_of
from ninfer_jax.demo.scoring import correct

SEED = 20_000


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


def main() -> None:
    """Prints accuracy per task; exit status 1 if one is below its goal."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    goals = {"reasoning": 0.95, "structured": 0.95, "chinese": 0.95, "tools": 0.90}
    scores = {}
    with (
        httpx.Client(base_url=arguments.url, timeout=120) as client,
        concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool,
    ):
        model = client.get("/v1/models").json()["data"][0]["id"]
        for task in goals:
            stream = generate(SCORED[task], "held_out", SEED)
            samples = list(itertools.islice(stream, arguments.samples))
            right = list(pool.map(lambda sample: ask(client, model, sample), samples))
            scores[task] = sum(right) / len(right)
            if not arguments.json:
                for sample, good in zip(samples, right, strict=True):
                    if not good:
                        print(f"wrong: {task} {sample.key}")
                print(f"{task:11s} {100 * scores[task]:5.1f} % of {len(right)}")
    if arguments.json:
        print(json.dumps(scores))
    if any(scores[task] < goal for task, goal in goals.items()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
