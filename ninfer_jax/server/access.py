"""What stands before every route: request ids, browser headers, the API key. Plain ASGI."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ninfer_jax.errors import RequestError
from ninfer_jax.server.errors import error_body

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset(("/health",))
CORS_HEADERS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
    "access-control-allow-headers": (
        "Authorization, Content-Type, X-API-Key, anthropic-version, anthropic-beta, "
        "anthropic-user-profile-id"
    ),
    "access-control-expose-headers": "x-request-id, request-id",
}


class AccessControl:
    """Wraps an ASGI application.

    Every reply gets `x-request-id: req_<32 hex>`. With `cors`, replies allow any origin and
    OPTIONS is answered with 204. With `api_key`, every other route but /health wants it as
    `Authorization: Bearer KEY` or `x-api-key: KEY`.
    """

    def __init__(self, application: Application, *, api_key: str | None, cors: bool):
        self._application = application
        self._api_key = None if api_key is None else api_key.encode()
        self._cors = cors

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(16)}"
        scope.setdefault("state", {})["request_id"] = request_id
        added = {"x-request-id": request_id, **(CORS_HEADERS if self._cors else {})}
        extra = [(name.encode(), value.encode()) for name, value in added.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        if self._cors and scope["method"] == "OPTIONS":
            await _reply(send_with_headers, 204, b"")
        elif scope["path"] not in OPEN_PATHS and not self._admits(scope["headers"]):
            error = RequestError(
                "a valid API key is required: send Authorization: Bearer KEY",
                code="invalid_api_key",
                status=401,
            )
            await _reply(send_with_headers, 401, error_body(error))
        else:
            await self._application(scope, receive, send_with_headers)

    def _admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        if self._api_key is None:
            return True
        admitted = False
        for name, value in headers:
            if name.lower() == b"authorization":
                scheme, _, key = value.strip().partition(b" ")
                offered = key.strip() if scheme.lower() == b"bearer" else None
            elif name.lower() == b"x-api-key":
                offered = value.strip()
            else:
                continue
            if offered is not None:
                admitted |= hmac.compare_digest(offered, self._api_key)
        return admitted


async def _reply(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", b"application/json"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 204:
        headers = []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
