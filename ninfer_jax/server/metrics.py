"""Prometheus metrics of one server: `GET /metrics`, text format 0.0.4.

Gauges and token counters come from one snapshot of the engine's own counters, taken at the
scrape; a scrape never waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ninfer_jax.engine.request import Engine, EngineCounters, Finished

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

_GAUGES = {
    "ninfer_requests_running": ("Requests bound to a lane", "running"),
    "ninfer_requests_waiting": ("Requests waiting for a lane", "waiting"),
    "ninfer_device_kv_used_pages": ("KV pages in use", "pages_used"),
    "ninfer_device_kv_capacity_pages": ("KV pages of the pool", "pages_total"),
    "ninfer_device_state_used_slots": ("State slots in use", "slots_used"),
    "ninfer_device_state_capacity_slots": ("State slots of the pool", "slots_total"),
}
_COUNTERS = {
    "ninfer_prefill_tokens": ("Prompt tokens run through the model", "prefill_tokens"),
    "ninfer_decode_tokens": ("Tokens committed by decode rounds", "decode_tokens"),
    "ninfer_decode_rounds": ("Decode rounds", "rounds"),
    "ninfer_recompilations": ("Programs compiled after start-up; a defect", "recompilations"),
}

_DRAFTING = {
    "ninfer_spec_decode_rounds": ("Rounds with a proposal", "rounds"),
    "ninfer_spec_decode_draft_tokens": ("Tokens proposed", "drafted_tokens"),
    "ninfer_spec_decode_accepted_tokens": ("Proposed tokens accepted", "accepted_tokens"),
    "ninfer_spec_decode_fallback_steps": ("Rounds without a proposal", "fallback_steps"),
}
"""Of requests that have ended."""


class ServerMetrics:
    """Counts requests and reads the engine; owns a registry of its own."""

    def __init__(self, engine: Callable[[], Engine | None]):
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(_EngineCollector(engine))
        self._requests = prometheus_client.Counter(
            "ninfer_requests",
            "Generation requests by outcome",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in ("completed", "cancelled", "rejected", "failed"):
            self._requests.labels(outcome)
        self._prompt = self._counter("ninfer_prompt_tokens", "Prompt tokens of requests")
        self._cached = self._counter("ninfer_prompt_tokens_cached", "Prompt tokens reused")
        self._generated = self._counter("ninfer_generation_tokens", "Committed output tokens")
        self._response_failures = self._counter(
            "ninfer_response_failures", "Replies that could not be delivered after their outcome"
        )
        self._first_token = self._histogram(
            "ninfer_time_to_first_token_seconds", "Arrival to first output token"
        )
        self._duration = self._histogram("ninfer_request_duration_seconds", "Arrival to outcome")
        self._queue = self._histogram("ninfer_request_queue_seconds", "Submit to lane")

    def ended(self, outcome: str) -> None:
        """Counts a request: `completed`, `cancelled`, `rejected` or `failed`."""
        self._requests.labels(outcome).inc()

    def finished(self, finished: Finished, prepare_seconds: float) -> None:
        """Counts the tokens and times of a request with an outcome."""
        usage, timing = finished.usage, finished.timing
        self._prompt.inc(usage.prompt_tokens)
        self._cached.inc(usage.cached_tokens)
        self._generated.inc(usage.completion_tokens)
        self._queue.observe(timing.queue_wait)
        self._duration.observe(prepare_seconds + timing.total)
        if timing.first_token is not None:
            self._first_token.observe(prepare_seconds + timing.first_token)

    def response_failed(self) -> None:
        self._response_failures.inc()

    def text(self) -> bytes:
        """All metrics."""
        return prometheus_client.generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> prometheus_client.Counter:
        return prometheus_client.Counter(name, text, registry=self._registry)

    def _histogram(self, name: str, text: str) -> prometheus_client.Histogram:
        return prometheus_client.Histogram(name, text, buckets=_SECONDS, registry=self._registry)


class _EngineCollector(Collector):
    """Turns one snapshot of the engine into metrics; without an engine, only readiness."""

    def __init__(self, engine: Callable[[], Engine | None]):
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        """Nothing: registration must not read the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        engine = self._engine()
        ready = engine is not None and engine.healthy
        yield _gauge("ninfer_engine_ready", "1 while requests are accepted", float(ready))
        if engine is None:
            return
        info = engine.info
        model = GaugeMetricFamily(
            "ninfer_model_info",
            "What is served",
            labels=["model", "architecture", "kv_dtype", "device", "spec", "implementation"],
        )
        implementation = str(info.details.get("implementation", ""))
        model.add_metric(
            [
                info.model_name,
                info.architecture,
                info.kv_dtype,
                info.device,
                info.spec,
                implementation,
            ],
            1,
        )
        yield model
        yield _gauge("ninfer_max_concurrency", "Lanes", info.max_concurrency)
        yield _gauge("ninfer_max_context_tokens", "Longest sequence", info.max_context)
        counters: EngineCounters = engine.counters()
        for name, (text, field) in _GAUGES.items():
            yield _gauge(name, text, getattr(counters, field))
        for name, (text, field) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(counters, field))
        for name, (text, field) in _DRAFTING.items():
            yield CounterMetricFamily(name, text, value=getattr(counters.speculation, field))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
