"""The life of the server process, in this order:

    bind the port -> accept (503 on every route but /metrics) -> load and compile -> warm up
    -> attach -> "listening" -> ... -> first signal: refuse, end what runs, reply, stop

The event loop runs from the start, on the main thread; loading happens on another one, so that
/health answers and a signal ends the process at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import uvicorn

from ninfer_jax.config import ServeConfig
from ninfer_jax.config.capacity import PAGE_TOKENS, pool_bounds
from ninfer_jax.errors import NInferError
from ninfer_jax.server.app import create_app
from ninfer_jax.server.service import ServedModel, Service
from ninfer_jax.server.sockets import url_of
from ninfer_jax.server.throughput import report_throughput
from ninfer_jax.server.warmup import warm_up

_log = logging.getLogger("ninfer_jax.server")
LONGEST_SHUTDOWN_SECONDS = 10
_SHOWN_WARMUP_SECONDS = 0.25

Build = Callable[[Callable[[str], None]], ServedModel]


def run_server(
    config: ServeConfig,
    listener: socket.socket,
    build: Build,
    *,
    announce: Callable[[str, str], None] = lambda url, model_id: None,
) -> int:
    """Serves until a signal comes; returns the exit status.

    `build` loads the model, given a sink for its log lines. `announce` is called with the URL and
    the model id once the server is ready.
    """
    with asyncio.Runner() as runner:
        return runner.run(_Server(config, listener, build, announce).run())


class _UvicornServer(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Server:
    def __init__(
        self,
        config: ServeConfig,
        listener: socket.socket,
        build: Build,
        announce: Callable[[str, str], None],
    ):
        self._config = config
        self._listener = listener
        self._build = build
        self._announce = announce
        self._service = Service(config)
        self._stopping = asyncio.Event()
        self._loading = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        server = _UvicornServer(
            uvicorn.Config(
                create_app(self._service),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=LONGEST_SHUTDOWN_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            return await self._serve()
        finally:
            server.should_exit = True
            await serving
            self._service.close()
            _log.info("server stopped")

    async def _serve(self) -> int:
        try:
            model = await self._load()
        except NInferError as error:
            _log.critical(error.message)
            return 1
        except Exception as error:
            _log.critical("start-up failed: %s: %s", type(error).__name__, error, exc_info=error)
            return 1
        reporter = self._start_reporter(model)
        try:
            await self._stopping.wait()
        finally:
            self._service.begin_shutdown()
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)
            # Waiting and running requests get their 503 from here, in-band in streams.
            await asyncio.to_thread(model.engine.close)
        return 0

    async def _load(self) -> ServedModel:
        self._loading = True
        model = await asyncio.to_thread(self._build, _log.info)
        self._loading = False
        try:
            for line in capacity_lines(self._config, model):
                _log.info(line)
            started = time.monotonic()
            await warm_up(model)
            seconds = time.monotonic() - started
            level = logging.INFO if seconds >= _SHOWN_WARMUP_SECONDS else logging.DEBUG
            _log.log(level, f"warmup complete | {seconds:.2f}s")
        except BaseException:
            await asyncio.to_thread(model.engine.close)
            raise
        self._service.attach(model)
        url, model_id = url_of(self._listener), self._service.front.model_id
        auth = "disabled" if self._config.api_key is None else "bearer"
        _log.info(f"listening on {url} | model id {model_id} | auth {auth}")
        self._announce(url, model_id)
        return model

    def _start_reporter(self, model: ServedModel) -> asyncio.Task[None]:
        interval = self._config.log_stats_interval_ms / 1000
        if not interval:
            return asyncio.create_task(asyncio.sleep(0))
        return asyncio.create_task(report_throughput(model.engine.counters, interval))

    def _on_signal(self) -> None:
        if self._stopping.is_set() or self._loading:
            # A second signal, or one while a thread loads and cannot be stopped: nothing is
            # being answered that waiting could save.
            status = 1 if self._stopping.is_set() else 0
            _log.info("server stopped")
            logging.shutdown()
            sys.stdout.flush()
            os._exit(status)
        self._stopping.set()


def capacity_lines(config: ServeConfig, model: ServedModel) -> list[str]:
    """What the server holds, for the log."""
    info = model.info
    bounds = pool_bounds(max_context=info.max_context, max_concurrency=info.max_concurrency)
    mode = "auto" if config.kv_capacity == "auto" else "explicit"
    pages = info.kv_capacity_tokens // PAGE_TOKENS
    return [
        f"capacity | KV {info.kv_capacity_tokens} tokens, {info.kv_dtype}, {mode} "
        f"| pages {pages}/{bounds.highest} | device {info.device}",
        f"context | history off | {info.max_concurrency} active + 0 extra device states "
        "| host 0.00 GiB",
    ]
