"""The HTTP application: which path is answered by what, and how errors are reported."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ninfer_jax.errors import NInferError
from ninfer_jax.server.access import AccessControl, Application
from ninfer_jax.server.chat_completions import chat_completions
from ninfer_jax.server.errors import ClientGoneError, as_wire_error, error_body
from ninfer_jax.server.models import health, list_models, one_model, show_metrics
from ninfer_jax.server.service import Service
from ninfer_jax.server.stream import Exchange

_log = logging.getLogger(__name__)
Handler = Callable[[Service, Exchange], Awaitable[None]]


class Endpoint:
    """Runs a handler on one exchange; an error before the reply becomes the error envelope."""

    def __init__(self, service: Service, handler: Handler):
        self._service = service
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seconds = self._service.keep_alive_seconds
        async with Exchange(scope, receive, send, keep_alive_seconds=seconds) as exchange:
            try:
                await self._handler(self._service, exchange)
            except ClientGoneError:
                return
            except Exception as error:
                if not isinstance(error, NInferError):
                    request_id = scope["state"]["request_id"]
                    _log.error("%s %s: unforeseen error", request_id, scope["path"], exc_info=error)
                if exchange.replying:
                    self._service.metrics.response_failed()
                    return
                await exchange.reply(error_body(error), status=as_wire_error(error).status)


def create_app(service: Service) -> Application:
    """The application of one server."""
    routes = [
        Route(path, Endpoint(service, handler), methods=[method])
        for method, path, handler in (
            ("GET", "/health", health),
            ("GET", "/metrics", show_metrics),
            ("GET", "/v1/models", list_models),
            ("GET", "/v1/models/{model_id:path}", one_model),
            ("POST", "/v1/chat/completions", chat_completions),
        )
    ]
    application = Starlette(
        routes=routes, exception_handlers={404: _nothing_here, 405: _nothing_here}
    )
    application.router.redirect_slashes = False
    return AccessControl(application, api_key=service.config.api_key, cors=service.config.cors)


async def _nothing_here(request: Request, error: Exception) -> Response:
    return Response(status_code=404)
