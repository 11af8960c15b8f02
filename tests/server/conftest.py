"""A server on a fake engine: in process, and as a real one on a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import socket
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

import ninfer_jax.demo
from ninfer_jax.config import ServeConfig
from ninfer_jax.server.app import create_app
from ninfer_jax.server.service import Service
from ninfer_jax.testing.byte_tokenizer import byte_tokenizer
from ninfer_jax.testing.fake_engine import FakeEngine, Script, fake_info, speak
from ninfer_jax.text.template import ChatTemplate
from ninfer_jax.text.tokenizer import Tokenizer

TEMPLATE = Path(ninfer_jax.demo.__file__).parent / "chat_template.jinja"
LONGEST_WAIT_SECONDS = 20.0


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE.read_text(encoding="utf-8"))


@dataclasses.dataclass
class FakeServer:
    """A service on a fake engine, with its application."""

    engine: FakeEngine
    service: Service
    application: Any

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request in process, without a socket."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.application)
            async with httpx.AsyncClient(transport=transport, base_url="http://fake") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def chat(self, content: Any = "hi", **fields: Any) -> httpx.Response:
        """One chat completion."""
        body = {"model": "fake", "messages": [{"role": "user", "content": content}], **fields}
        return self.request("POST", "/v1/chat/completions", json=body)

    def chunks(self, content: Any = "hi", **fields: Any) -> list[Any]:
        """The events of one stream, `[DONE]` as text, the others as JSON."""
        reply = self.chat(content, stream=True, **fields)
        assert reply.status_code == 200, reply.text
        return events_of(reply.text)


def events_of(text: str) -> list[Any]:
    """Reads server-sent events; comments are left out."""
    events = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":"):
            assert block.startswith("data: ") and "\n" not in block
            data = block[len("data: ") :]
            events.append(data if data == "[DONE]" else json.loads(data))
    return events


@pytest.fixture
def read_events() -> Callable[[str], list[Any]]:
    return events_of


@pytest.fixture
def make_server(tokenizer, template) -> Iterator[Callable[..., FakeServer]]:
    """Makes fake servers; at the end their engines are idle, and no thread is left."""
    before = set(threading.enumerate())
    made: list[FakeServer] = []

    def make(
        says: str | Script = "I add.</think>\n\n85",
        *,
        attached: bool = True,
        keep_alive_seconds: float = 5.0,
        info: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        **config: Any,
    ) -> FakeServer:
        settings = ServeConfig(**{"model": "fake", **config})
        script = speak(tokenizer, says) if isinstance(says, str) else says
        facts = fake_info(
            **{
                "max_concurrency": settings.max_concurrency,
                "max_context": min(settings.max_context, 4096),
                **(info or {}),
            }
        )
        fake = FakeEngine(script, info=facts, **(engine or {}))
        service = Service(settings, keep_alive_seconds=keep_alive_seconds)
        if attached:
            service.attach(
                types.SimpleNamespace(
                    engine=fake, tokenizer=tokenizer, template=template, info=facts
                )
            )
        made.append(FakeServer(fake, service, create_app(service)))
        return made[-1]

    yield make
    for server in made:
        counters = server.engine.counters()
        server.engine.close()
        server.service.close()
        assert (counters.running, counters.waiting) == (0, 0), "a request was left behind"
        assert server.service.gate.inside == 0, "a place was not given back"
    assert set(threading.enumerate()) <= before, "a thread was left behind"


@pytest.fixture
def server(make_server) -> FakeServer:
    """A server that answers everything with reasoning `I add.` and content `85`."""
    return make_server()


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@pytest.fixture
def listen() -> Iterator[Callable[[FakeServer], str]]:
    """Puts a fake server on a free loopback port; returns its URL."""
    running: list[tuple[_Uvicorn, threading.Thread]] = []

    def listen(server: FakeServer) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        live = _Uvicorn(
            uvicorn.Config(
                server.application,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
            )
        )
        thread = threading.Thread(
            target=lambda: asyncio.run(live.serve(sockets=[listener])), name="uvicorn"
        )
        thread.start()
        running.append((live, thread))
        assert live.up.wait(LONGEST_WAIT_SECONDS)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield listen
    for live, thread in running:
        live.should_exit = True
        thread.join(LONGEST_WAIT_SECONDS)
        assert not thread.is_alive()


class LogLines(logging.Handler):
    """Collects the lines of the request log; `wait_for` blocks until one has come."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self._condition = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._condition:
            self.lines.append((record.levelname, record.getMessage()))
            self._condition.notify_all()

    def wait_for(self, part: str) -> tuple[str, str]:
        """The first line that holds `part`, as (level, message)."""

        def found() -> tuple[str, str] | None:
            return next((line for line in self.lines if part in line[1]), None)

        with self._condition:
            line = self._condition.wait_for(found, LONGEST_WAIT_SECONDS)
        assert line, f"no line with {part!r} in {self.lines}"
        return line


@pytest.fixture
def log_lines() -> Iterator[LogLines]:
    """What the package logs during a test."""
    handler = LogLines()
    logger = logging.getLogger("ninfer_jax")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)
