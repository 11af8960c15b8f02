"""GET /v1/models, /v1/models/{id}, /health and /metrics."""

from __future__ import annotations

import msgspec

from ninfer_jax.server import metrics
from ninfer_jax.server.schemas import Model, ModelList
from ninfer_jax.server.service import Service
from ninfer_jax.server.stream import Exchange


async def list_models(service: Service, exchange: Exchange) -> None:
    """The one model of this server."""
    await exchange.reply(msgspec.json.encode(ModelList(data=[_model(service)])))


async def one_model(service: Service, exchange: Exchange) -> None:
    """The model by id. Raises `RequestError` (404) for any other id."""
    service.require_model(exchange.path_parameters["model_id"])
    await exchange.reply(msgspec.json.encode(_model(service)))


async def health(service: Service, exchange: Exchange) -> None:
    """200 while requests are accepted, whatever the queue; 503 before and after."""
    if service.ready:
        await exchange.reply(b'{"status":"ok"}')
    else:
        await exchange.reply(b'{"status":"unavailable"}', status=503)


async def show_metrics(service: Service, exchange: Exchange) -> None:
    """Prometheus text; readable also after the engine has failed."""
    await exchange.reply(service.metrics.text(), content_type=metrics.CONTENT_TYPE)


def _model(service: Service) -> Model:
    front = service.front
    return Model(id=front.model_id, created=service.created, max_model_len=front.max_context)
