"""The state of one server: what is served, who is inside, whether it is ready.

Used from the event loop only, except `prepare_pool`, which runs the parsing and the rendering
of requests on its own threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ninfer_jax.config import ServeConfig
from ninfer_jax.engine.request import Engine, EngineInfo
from ninfer_jax.errors import RequestError, UnavailableError
from ninfer_jax.server.admission import LifetimeGate
from ninfer_jax.server.metrics import ServerMetrics
from ninfer_jax.server.request_log import RequestLog
from ninfer_jax.text.template import ChatTemplate
from ninfer_jax.text.tokenizer import Tokenizer

T = TypeVar("T")
PREPARE_THREADS = 2
KEEP_ALIVE_SECONDS = 5.0


class ServedModel(Protocol):
    """What `engine.build.build_engine` returns."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    info: EngineInfo


@dataclasses.dataclass(frozen=True)
class Front:
    """What a request needs once the model is attached."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    model_id: str
    max_context: int


class Service:
    """One server.

    Attributes:
      config: its configuration.
      created: start time in Unix seconds, `created` of the model.
      keep_alive_seconds: silence of a stream after which a comment is sent.
    """

    def __init__(
        self,
        config: ServeConfig,
        *,
        request_log: RequestLog | None = None,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.config = config
        self.created = int(time.time())
        self.keep_alive_seconds = keep_alive_seconds
        self.clock = clock
        self.gate = LifetimeGate(lanes=config.max_concurrency, pending=config.max_pending_requests)
        self.log = request_log or RequestLog()
        self._front: Front | None = None
        self._closing = False
        self.metrics = ServerMetrics(lambda: self._front.engine if self._front else None)
        self._request_ids = itertools.count(1)
        self._pool = concurrent.futures.ThreadPoolExecutor(
            PREPARE_THREADS, thread_name_prefix="ninfer-prepare"
        )

    def attach(self, model: ServedModel) -> None:
        """Makes a warmed-up engine available; from here on the server is ready."""
        self._front = Front(
            engine=model.engine,
            tokenizer=model.tokenizer,
            template=model.template,
            model_id=self.config.model_id or model.info.model_name or model.info.architecture,
            max_context=model.info.max_context,
        )

    @property
    def ready(self) -> bool:
        """True from `attach` until the engine fails or the server shuts down."""
        return self._front is not None and self._front.engine.healthy and not self._closing

    @property
    def front(self) -> Front:
        """The attached model. Raises `UnavailableError` before `attach`."""
        if self._front is None:
            raise UnavailableError("the model is still being loaded; try again later")
        return self._front

    def require_ready(self) -> Front:
        """The attached model. Raises `UnavailableError` unless the server is ready."""
        front = self.front
        if self._closing:
            raise UnavailableError("the server is shutting down; send the request again later")
        if not front.engine.healthy:
            raise UnavailableError("the engine has failed; the server must be started again")
        return front

    def require_model(self, name: str) -> None:
        """Raises `RequestError` (404) unless `name` is the public id of the model."""
        known = self.front.model_id
        if name != known:
            raise RequestError(
                f"the model {name!r} does not exist; this server has {known!r}",
                code="model_not_found",
                param="model",
                status=404,
            )

    def next_request_id(self) -> int:
        return next(self._request_ids)

    async def offload(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Runs a pure function on a preparation thread, so that the event loop stays free."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def begin_shutdown(self) -> None:
        """From here on new requests are refused."""
        self._closing = True

    def close(self) -> None:
        """Ends the preparation threads; call after the last request."""
        self._closing = True
        self._pool.shutdown(wait=True, cancel_futures=True)
