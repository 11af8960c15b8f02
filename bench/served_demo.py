"""The demo behind its real server, in this process, with every outcome of the engine kept.

The wire does not tell acceptance by position; the engine's own `Finished` does.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
from typing import Any

import httpx
import uvicorn

from ninfer_jax.config import ServeConfig
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.config.resolve import resolve
from ninfer_jax.demo.samples import Sample, messages_of
from ninfer_jax.engine.build import build_engine
from ninfer_jax.engine.request import Failed, Finished
from ninfer_jax.server.app import create_app
from ninfer_jax.server.service import Service

SETTINGS = (
    *("--config", "demo.py", "--max-concurrency", "1"),
    *("--max-context", "1024", "--kv-capacity", "1024"),
)


class Recorder:
    """An engine that keeps the outcome of every request beside handing it on."""

    def __init__(self, engine):
        self._engine = engine
        self.outcomes: list[Finished] = []

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def submit(self, request, sink) -> None:
        """See `Engine.submit`."""

        def keep(event) -> None:
            if isinstance(event, Finished):
                self.outcomes.append(event)
            if isinstance(event, Failed):
                raise event.error
            sink(event)

        self._engine.submit(request, keep)


@dataclasses.dataclass(frozen=True)
class Reply:
    """One streamed reply as a client and as the engine saw it.

    Attributes:
      chunks: stream events that carried text.
      seconds: from the first such event to the last.
    """

    outcome: Finished
    chunks: int
    seconds: float


class ServedDemo:
    """A demo server with some drafter."""

    def __init__(self, *flags: str):
        config = resolve(ServeConfig, [*SETTINGS, *flags], program="bench").config
        config = dataclasses.replace(config, model=str(find_artifact(config.model)))
        built = build_engine(config, log=lambda line: None)
        self.programs = built.programs
        self.recorder = Recorder(built.engine)
        service = Service(config)
        service.attach(dataclasses.replace(built, engine=self.recorder))
        listener = socket.create_server(("127.0.0.1", 0))
        options = uvicorn.Config(create_app(service), log_config=None, lifespan="off")
        self._server = uvicorn.Server(options)
        thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._client = httpx.Client(base_url=url, timeout=120)
        self._model = service.front.model_id

    def ask(self, sample: Sample, temperature: float, seed: int) -> Reply:
        """One streamed request."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": _messages(sample),
            "temperature": temperature,
            "seed": seed,
            "max_tokens": 200,
            "stream": True,
        }
        if sample.tools:
            body["tools"] = list(sample.tools)
        times = []
        with self._client.stream("POST", "/v1/chat/completions", json=body) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:]).get("choices", ()):
                    delta = choice.get("delta", {})
                    said = delta.get("reasoning_content") or delta.get("content")
                    said = said or delta.get("tool_calls")
                    if said:
                        times.append(time.perf_counter())
        seconds = times[-1] - times[0] if times else 0.0
        return Reply(self.recorder.outcomes[-1], len(times), seconds)

    def close(self) -> None:
        """Stops the server and the engine."""
        self._server.should_exit = True
        self.recorder.close()


def _messages(sample: Sample) -> list[dict[str, Any]]:
    messages = messages_of(sample, with_answer=False)
    for message in messages:
        for index, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"call_{index:016x}"
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        if message["role"] == "tool":
            message["tool_call_id"] = f"call_{0:016x}"
    return messages
