"""One HTTP exchange: read the body, write one reply or a stream of events, notice a lost client.

With `http.disconnect` the ASGI server tells at once that the client is gone; `gone` is set then.
A stream that is silent for some seconds carries comment lines, so that proxies keep it open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ninfer_jax.errors import RequestError
from ninfer_jax.server.errors import ClientGoneError

T = TypeVar("T")
KEEP_ALIVE = b": keep-alive\n\n"
_STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Exchange:
    """One request and its reply.

    Attributes:
      gone: set once the client has closed its connection.
      replying: True once the status line has been sent.
      path_parameters: values in the route's path.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, keep_alive_seconds: float):
        self.gone = asyncio.Event()
        self.replying = False
        self.path_parameters: dict[str, str] = scope.get("path_params", {})
        self._scope = scope
        self._receive = receive
        self._raw_send = send
        self._keep_alive_seconds = keep_alive_seconds
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    async def body(self, limit: int) -> bytes:
        """Reads the whole body, then watches for a lost client.

        Raises `RequestError` (413) as soon as it is known to exceed `limit` bytes.
        """
        declared = Headers(scope=self._scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
            if not message.get("more_body", False):
                break
        self._watch = asyncio.create_task(self._watch_client())
        return b"".join(pieces)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`; stops it and raises `ClientGoneError` if the client leaves first."""
        task = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGoneError
            return task.result()
        finally:
            await _settle(task, leaving)

    async def reply(
        self, body: bytes, *, status: int = 200, content_type: str = "application/json"
    ) -> None:
        """Sends one whole reply."""
        response = Response(body, status_code=status, headers={"content-type": content_type})
        await response(self._scope, self._receive, self._send)

    async def reply_events(self, events: AsyncGenerator[bytes, None]) -> None:
        """Sends a stream of server-sent events, each a complete `data: ...` block.

        Raises `ClientGoneError` if the client leaves before the end; `events` is closed then.
        """
        headers = [(k.encode(), v.encode()) for k, v in _STREAM_HEADERS.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        leaving = asyncio.ensure_future(self.gone.wait())
        following: asyncio.Future[bytes] = asyncio.ensure_future(anext(events))
        try:
            while True:
                await asyncio.wait(
                    {following, leaving},
                    timeout=self._keep_alive_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if leaving.done():
                    raise ClientGoneError
                if not following.done():
                    await self._write(KEEP_ALIVE)
                    continue
                try:
                    event = following.result()
                except StopAsyncIteration:
                    break
                await self._write(event)
                following = asyncio.ensure_future(anext(events))
        finally:
            await _settle(following, leaving)
            await events.aclose()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _send(self, message: Message) -> None:
        self.replying = True
        await self._raw_send(message)

    async def _watch_client(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return


async def _settle(*futures: asyncio.Future[Any]) -> None:
    """Cancels what still runs and waits for its end."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"the body is larger than {limit} bytes, the limit of this server",
        code="request_too_large",
        status=413,
    )
