"""The lines that tell the life of a request. Counts and times only, never text.

    req#7 started | openai-chat stream | 3 messages | max output 8192 | thinking medium
    req#7 done | openai-chat | stop token | prompt 1200 | output 14 | reasoning 9
      | cache 1024 (85.3%, checkpoint) | TTFT 90ms | total 190ms | prefill 2200.0 tok/s
      | decode 144.4 tok/s | dflash2 accepted 10/24 (41.7%)

(one physical line each). Scripts parse `decode R tok/s | BACKEND accepted A/D (P%)`.
"""

from __future__ import annotations

import logging

from ninfer_jax.engine.request import Finished, FinishReason
from ninfer_jax.server.prepare import PreparedChat

SHOWN_QUEUE_SECONDS = 0.010
_WARNING_STATUS = (429, 502, 503, 504)
_FINISH_WORDS = {
    FinishReason.STOP_TOKEN: "stop token",
    FinishReason.STOP_STRING: "stop string",
    FinishReason.OUTPUT_LIMIT: "output limit",
    FinishReason.CONTEXT_CAPACITY: "context capacity",
    FinishReason.CANCELLED: "cancelled",
}
_STOPPED = (FinishReason.STOP_TOKEN, FinishReason.STOP_STRING)


class RequestLog:
    """Writes the lines of all requests of one server to a logger."""

    def __init__(self, logger: logging.Logger | None = None):
        self._logger = logger or logging.getLogger("ninfer_jax.server")

    def started(self, protocol: str, prepared: PreparedChat, *, stream: bool) -> None:
        self._logger.info(started_line(protocol, prepared, stream=stream))

    def done(
        self,
        protocol: str,
        request_id: int,
        finished: Finished,
        *,
        prepare_seconds: float,
        tool_calls: int,
        has_content: bool,
    ) -> None:
        line = done_line(
            protocol,
            request_id,
            finished,
            prepare_seconds=prepare_seconds,
            tool_calls=tool_calls,
            has_content=has_content,
        )
        self._logger.info(line)

    def ended_early(
        self, protocol: str, request_id: int | None, status: int, code: str | None, *, started: bool
    ) -> None:
        """A request that ended without an outcome of the engine."""
        line = early_line(protocol, request_id, status, code, started=started)
        self._logger.log(_level(status), line)

    def malformed_calls(self, request_id: int, reason: str) -> None:
        """Tool markup that became no call: its class only, never the markup."""
        self._logger.warning(f"req#{request_id} tool markup was no call | {reason}")


def started_line(protocol: str, prepared: PreparedChat, *, stream: bool) -> str:
    """The line of a request that was handed to the engine."""
    parts = [
        f"req#{prepared.request.request_id} started",
        f"{protocol} stream" if stream else protocol,
        f"{prepared.message_count} messages",
        f"max output {prepared.request.max_tokens}",
        f"thinking {prepared.thinking}",
    ]
    if prepared.tool_count:
        parts.append(f"tools {prepared.tool_count}")
    if prepared.preserve_thinking:
        parts.append("preserve thinking")
    return " | ".join(parts)


def done_line(
    protocol: str,
    request_id: int,
    finished: Finished,
    *,
    prepare_seconds: float,
    tool_calls: int,
    has_content: bool,
) -> str:
    """The line of a request with an outcome."""
    usage, timing, drafting = finished.usage, finished.timing, finished.speculation
    calls_win = tool_calls and finished.reason in _STOPPED
    parts = [
        f"req#{request_id} done",
        protocol,
        f"tool calls {tool_calls}" if calls_win else _FINISH_WORDS[finished.reason],
        f"prompt {usage.prompt_tokens}",
        f"output {usage.completion_tokens}",
        f"reasoning {usage.reasoning_tokens}",
        _cache(usage.cached_tokens, usage.prompt_tokens, usage.reuse_path),
        "TTFT -"
        if timing.first_token is None
        else f"TTFT {duration(prepare_seconds + timing.first_token)}",
        f"total {duration(prepare_seconds + timing.total)}",
    ]
    if timing.queue_wait >= SHOWN_QUEUE_SECONDS:
        parts.append(f"queue {duration(timing.queue_wait)}")
    computed = usage.prompt_tokens - usage.cached_tokens
    if timing.prefill > 0 and computed > 0:
        parts.append(f"prefill {computed / timing.prefill:.1f} tok/s")
    if timing.decode > 0 and usage.completion_tokens > 1:
        parts.append(f"decode {(usage.completion_tokens - 1) / timing.decode:.1f} tok/s")
    if drafting.drafted_tokens:
        accepted, drafted = drafting.accepted_tokens, drafting.drafted_tokens
        share = 100 * accepted / drafted
        parts.append(f"{drafting.backend} accepted {accepted}/{drafted} ({share:.1f}%)")
    if finished.reason is FinishReason.OUTPUT_LIMIT and not has_content and not tool_calls:
        parts.append("no visible content")
    return " | ".join(parts)


def early_line(
    protocol: str, request_id: int | None, status: int, code: str | None, *, started: bool
) -> str:
    """The line of a request that was refused, cancelled or failed before an outcome."""
    verb = "cancelled" if status == 499 else "failed" if started or status == 500 else "rejected"
    name = "request" if request_id is None else f"req#{request_id}"
    phase = "" if started else " during prepare"
    return f"{name} {verb}{phase} | {protocol} | HTTP {status} | {code or 'invalid_request'}"


def duration(seconds: float) -> str:
    """0.09 -> `90ms`,  12.3456 -> `12.35s`."""
    return f"{seconds * 1000:.0f}ms" if seconds < 0.9995 else f"{seconds:.2f}s"


def _cache(cached: int, prompt: int, path: str) -> str:
    share = 100 * cached / prompt if prompt else 0.0
    where = f", {path}" if cached and path != "none" else ""
    return f"cache {cached} ({share:.1f}%{where})"


def _level(status: int) -> int:
    if status in _WARNING_STATUS:
        return logging.WARNING
    return logging.ERROR if status >= 500 else logging.INFO
