"""What chat completions and the model list look like on the wire."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ninfer_jax.engine.request import Usage as EngineUsage


class PromptDetails(msgspec.Struct):
    """How many prompt tokens were reused."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    """How many output tokens were committed inside reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Token counts; `completion_tokens` counts every committed output token."""

    prompt_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens: int
    completion_tokens_details: CompletionDetails
    total_tokens: int


class Timings(msgspec.Struct):
    """llama.cpp-style timings, wall clock; all rates finite, 0 where undefined."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET
    draft_n_accepted: int | UnsetType = UNSET


class PromptProgress(msgspec.Struct):
    """Prompt tokens done; `time_ms` counts from admission."""

    total: int
    cache: int
    processed: int
    time_ms: float


class Function(msgspec.Struct):
    """A called function; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """One call; `index` appears in streams only."""

    index: int | UnsetType = UNSET
    id: str
    type: str = "function"
    function: Function


class Message(msgspec.Struct, kw_only=True):
    """The answer; `content` is null where there are calls and no text."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Choice(msgspec.Struct, kw_only=True):
    """The one answer of a reply."""

    index: int = 0
    message: Message
    logprobs: None = None
    finish_reason: str


class Completion(msgspec.Struct, kw_only=True):
    """`chat.completion`."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: Timings


class Delta(msgspec.Struct):
    """What a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The one choice of a chunk."""

    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, kw_only=True):
    """`chat.completion.chunk`. `usage` is null in earlier chunks where it was asked for."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


class Model(msgspec.Struct, kw_only=True):
    """One entry of the model list."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "ninfer"
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """The model list."""

    object: str = "list"
    data: list[Model]


def usage_of(usage: EngineUsage) -> Usage:
    """The engine's counts in wire form."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens),
        completion_tokens=usage.completion_tokens,
        completion_tokens_details=CompletionDetails(usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
