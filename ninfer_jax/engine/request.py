"""What the server hands to the engine and what it gets back. No JAX here.

The server prepares a `Request` and calls `Engine.submit(request, sink)`. From then on the
engine owns it: it calls `sink` from its own thread, in order, with any number of `Progress`
and `Delta` events and exactly one last `Finished` or `Failed`. `sink` must not block.

Text is decided where tokens are committed: the engine pushes each committed token through
`Request.decoder` (a `ninfer_jax.text.output.OutputDecoder`), so a stop string can end the
sequence at exactly the token that completes it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ninfer_jax.text.verdict import TokenVerdict

__all__ = [
    "Delta",
    "Engine",
    "EngineCounters",
    "EngineInfo",
    "Failed",
    "FinishReason",
    "Finished",
    "OutputEvent",
    "Progress",
    "Request",
    "SamplingParams",
    "Sink",
    "Speculation",
    "SpeculationTotals",
    "Timing",
    "TokenDecoder",
    "TokenVerdict",
    "Usage",
    "total_tokens",
]


class FinishReason(enum.Enum):
    """Why a sequence ended; the value is the word of the request log."""

    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    OUTPUT_LIMIT = "output_limit"
    CONTEXT_CAPACITY = "context_capacity"
    CANCELLED = "cancelled"


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How one token is drawn from the target distribution.

    `temperature` 0 means argmax (lowest id on ties). `top_k` is 1..20; 0 means 20.
    Penalties count the tokens committed by this request. `seed` is taken modulo 2**64.
    """

    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 0.95
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0.0


class TokenDecoder(Protocol):
    """Turns committed tokens into text of channels, one token at a time.

    Implemented by `ninfer_jax.text.output.OutputDecoder`.
    """

    reasoning_tokens: int
    """Tokens committed so far while the output was in the reasoning channel
    (the token that carries `</think>` included)."""

    def push(self, token_id: int) -> TokenVerdict:
        """Adds one committed token that is not a stop token."""

    def take(self) -> tuple[str, str]:
        """Returns and clears the text now safe to show, as (reasoning, content)."""

    def finish(self) -> tuple[str, str]:
        """Ends the output: returns everything that was held back, as (reasoning, content)."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One prepared generation request.

    Attributes:
      request_id: number of the request in this process, from 1 (the N of `req#N`).
      prompt_ids: the rendered prompt, at least one id, all addressable.
      sampling: resolved parameters with the seed that will be used.
      max_tokens: effective output limit, >= 0, with prompt + max_tokens <= max context.
        0 means: process the prompt, generate nothing.
      stop_token_ids: ids that end the sequence; counted, their text withheld.
      decoder: fresh output decoder, owned by the engine from submit on.
      deadline: monotonic time after which an unadmitted request fails, or None.
      context_limited: True if `max_tokens` was cut by the context, so that reaching it is
        reported as `CONTEXT_CAPACITY`.
      host_paced: the host must see each round before the next one runs, as what it finds in
        the text (a stop string) may end the sequence inside it.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    stop_token_ids: frozenset[int]
    decoder: TokenDecoder
    deadline: float | None = None
    context_limited: bool = False
    host_paced: bool = False


@dataclasses.dataclass(frozen=True)
class Usage:
    """Token counts of a request. `completion_tokens` counts every committed output token."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int = 0
    reuse_path: str = "none"


@dataclasses.dataclass(frozen=True)
class Timing:
    """Time windows of one request in seconds; 0.0 where nothing ran.

    Attributes:
      queue_wait: submit until bound to a lane.
      prefill: start of the first prefill unit until the first token is on the host.
      decode: sum of the wall times of the decode rounds this request took part in.
      first_token: submit until the first output token is committed, or None.
      total: submit until the outcome.
      wall_prompt: admission until the first committed token (llama.cpp `prompt_ms`).
      wall_predicted: first until last committed token (llama.cpp `predicted_ms`).
      rounds: decode rounds of this request.
    """

    queue_wait: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    first_token: float | None = None
    total: float = 0.0
    wall_prompt: float = 0.0
    wall_predicted: float = 0.0
    rounds: int = 0


@dataclasses.dataclass(frozen=True)
class Speculation:
    """Drafting statistics of one request (all zero without a drafter)."""

    backend: str = "none"
    draft_window: int = 0
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    fallback_steps: int = 0
    accepted_per_position: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class SpeculationTotals:
    """Drafting of all finished requests."""

    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    fallback_steps: int = 0

    def with_request(self, one: Speculation) -> SpeculationTotals:
        """The totals with one more request."""
        return SpeculationTotals(
            self.rounds + one.rounds,
            self.drafted_tokens + one.drafted_tokens,
            self.accepted_tokens + one.accepted_tokens,
            self.fallback_steps + one.fallback_steps,
        )


@dataclasses.dataclass(frozen=True)
class Progress:
    """Prompt tokens processed so far (`processed` includes the cached prefix)."""

    processed: int
    total: int
    cached: int


@dataclasses.dataclass(frozen=True)
class Delta:
    """Text that became safe to show, and the tokens committed with it.

    `drafted` says of each token whether a drafter had guessed it; empty where nothing was drafted.
    """

    reasoning: str
    content: str
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True)
class Finished:
    """The last event of a request that ended normally (or was cancelled)."""

    reason: FinishReason
    usage: Usage
    timing: Timing
    speculation: Speculation


@dataclasses.dataclass(frozen=True)
class Failed:
    """The last event of a request that failed; `error` is a `NInferError`."""

    error: Exception


OutputEvent = Progress | Delta | Finished | Failed
Sink = Callable[[OutputEvent], None]


@dataclasses.dataclass(frozen=True)
class EngineInfo:
    """What the server may tell about the engine: fixed before the server listens."""

    model_name: str
    architecture: str
    max_context: int
    max_concurrency: int
    kv_dtype: str
    kv_capacity_tokens: int
    device: str
    spec: str = "none"
    draft_tokens: int = 0
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EngineCounters:
    """A consistent snapshot of the engine's own counters."""

    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    decode_seconds: float
    prefill_seconds: float
    rounds: int
    row_rounds: int
    recompilations: int
    pages_used: int
    pages_total: int
    slots_used: int
    slots_total: int
    speculation: SpeculationTotals = SpeculationTotals()


class Engine(Protocol):
    """The small protocol through which the server sees an engine."""

    info: EngineInfo

    def submit(self, request: Request, sink: Sink) -> None:
        """Queues a request. Raises `UnavailableError` if the engine failed or is closing."""

    def cancel(self, request_id: int) -> None:
        """Asks that a request ends soon with `CANCELLED`; unknown ids are ignored."""

    def counters(self) -> EngineCounters: ...

    @property
    def healthy(self) -> bool: ...

    def close(self, *, drain_seconds: float = 0.0) -> None:
        """Stops the worker; running requests get `drain_seconds` to finish, then `Failed`."""


def total_tokens(prompt_ids: Sequence[int], max_tokens: int) -> int:
    """Cache positions a request may touch: prompt plus the whole output limit."""
    return len(prompt_ids) + max_tokens
