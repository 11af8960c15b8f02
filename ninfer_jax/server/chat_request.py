"""The body of a chat completion request: its fields and their types.

`messages`, `tools` and `chat_template_kwargs` are kept as raw JSON and read by
`text.json_text`, because key order and the spelling of numbers in them become prompt tokens.
Unknown top-level fields are ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from ninfer_jax.errors import RequestError
from ninfer_jax.text.json_text import parse_json

MOST_STOP_STRINGS = 4

_NULL = msgspec.Raw(b"null")
_MISSING = re.compile(r"missing required field `(\w+)`")
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_StopString = Annotated[str, msgspec.Meta(min_length=1)]
_StopStrings = Annotated[list[_StopString], msgspec.Meta(max_length=MOST_STOP_STRINGS)]


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(msgspec.Struct, kw_only=True):
    """Fields with a meaning; those that are only refused are plain data. Null means absent."""

    model: str
    messages: msgspec.Raw
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    seed: int | None = None
    stop: _StopString | _StopStrings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    tools: msgspec.Raw = _NULL
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: msgspec.Raw = _NULL
    prompt_cache_key: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    # Neutral or refused, see `refusals`.
    n: int | None = None
    logit_bias: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None
    modalities: Any = None
    web_search_options: Any = None
    moderation: Any = None
    verbosity: Any = None
    store: bool | None = None
    functions: Any = None
    function_call: Any = None
    repetition_penalty: float | None = None
    mm_processor_kwargs: Any = None

    @property
    def output_limit(self) -> int | None:
        """The output limit the client asked for; the newer name wins."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def decode_chat_request(body: bytes) -> ChatRequest:
    """Reads a body. Raises `RequestError` (400): not JSON, or a field missing or mistyped."""
    try:
        return msgspec.json.decode(body, type=ChatRequest)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def read_raw(raw: msgspec.Raw, param: str) -> Any:
    """Reads one raw member of a request. Raises `RequestError`."""
    try:
        return parse_json(bytes(raw).decode("utf-8"))
    except ValueError as error:
        raise RequestError(f"{param}: not valid JSON: {error}", param=param) from None


def _field_error(text: str) -> RequestError:
    """Turns `Expected `int`, got `str` - at `$.max_tokens`` into an error with its `param`."""
    missing = _MISSING.search(text)
    place = _PATH.search(text)
    path = place["path"] if place else ""
    reason = _PATH.sub("", text).replace("`", "")
    if missing:
        path = f"{path}.{missing[1]}".lstrip(".")
        return RequestError(f"{path}: this field is required", param=path)
    if not path:
        return RequestError(f"the body must be a JSON object: {reason}")
    return RequestError(f"{path}: {reason[:1].lower()}{reason[1:]}", param=path)
