"""From the body of a chat request to the request that the engine runs.

Two steps, both off the event loop and without JAX. `parse_chat` needs nothing but the body and
happens before a request takes a place; `prepare_chat` renders and encodes the prompt.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

from ninfer_jax.config import ServeConfig
from ninfer_jax.engine.request import Request, SamplingParams
from ninfer_jax.errors import RequestError
from ninfer_jax.server.chat_request import ChatRequest, decode_chat_request, read_raw
from ninfer_jax.server.conversation import check_messages
from ninfer_jax.server.refusals import refuse_unsupported
from ninfer_jax.server.tool_options import ToolOptions, read_tools
from ninfer_jax.text.output import OutputDecoder
from ninfer_jax.text.prompt import Prompt, PromptOptions, build_prompt
from ninfer_jax.text.sampling_defaults import SamplingOverrides, resolve_sampling
from ninfer_jax.text.template import ChatTemplate
from ninfer_jax.text.thinking import agreed_switch, resolve_effort
from ninfer_jax.text.tokenizer import Tokenizer

_SEEDS = 1 << 64
_NAMED_OPTIONS = ("enable_thinking", "preserve_thinking", "reasoning_effort")
_SAMPLING_FIELDS = tuple(field.name for field in dataclasses.fields(SamplingOverrides))


@dataclasses.dataclass(frozen=True)
class ParsedChat:
    """A chat request whose wire contract has been checked.

    Attributes:
      request: the body.
      messages: messages in the form that templates take.
      tools: tool definitions and which of them may be called.
      template_options: members of `chat_template_kwargs` that only the template knows.
      enable_thinking: what the request says of thinking, by all its spellings; None: nothing.
      preserve_thinking: the same for keeping the reasoning of closed turns.
      reasoning_effort: the effort word of the request, or None.
    """

    request: ChatRequest
    messages: list[dict[str, Any]]
    tools: ToolOptions
    template_options: dict[str, Any]
    enable_thinking: bool | None
    preserve_thinking: bool | None
    reasoning_effort: str | None


@dataclasses.dataclass(frozen=True)
class PreparedChat:
    """A chat request ready for the engine, with the facts that its log lines tell.

    Attributes:
      request: what the engine runs.
      decoder: the decoder inside `request`; its tool calls are complete once the engine is done.
      thinking: `off`, the effort level, or `default` where the template chooses it.
      message_count: messages of the request.
      tool_count: tools that may be called.
      preserve_thinking: reasoning of closed turns is in the prompt.
    """

    request: Request
    decoder: OutputDecoder
    thinking: str
    message_count: int
    tool_count: int
    preserve_thinking: bool


def parse_chat(body: bytes) -> ParsedChat:
    """Reads and checks a body. Raises `RequestError`."""
    request = decode_chat_request(body)
    refuse_unsupported(request)
    messages = check_messages(read_raw(request.messages, "messages"))
    tools = read_tools(request)
    options = read_raw(request.chat_template_kwargs, "chat_template_kwargs")
    if options is None:
        options = {}
    if not isinstance(options, dict):
        raise RequestError("chat_template_kwargs: expected an object", param="chat_template_kwargs")
    return ParsedChat(
        request=request,
        messages=messages,
        tools=tools,
        template_options={k: v for k, v in options.items() if k not in _NAMED_OPTIONS},
        enable_thinking=_switch("enable_thinking", request.enable_thinking, options),
        preserve_thinking=_switch("preserve_thinking", request.preserve_thinking, options),
        reasoning_effort=_effort(request.reasoning_effort, options),
    )


def prepare_chat(
    parsed: ParsedChat,
    *,
    config: ServeConfig,
    max_context: int,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    request_id: int,
    deadline: float | None,
) -> PreparedChat:
    """Renders, encodes and resolves a request. Raises `RequestError`."""
    asked = agreed_switch(
        {
            "enable_thinking": parsed.enable_thinking,
            "reasoning_effort": resolve_effort(parsed.reasoning_effort).thinking,
        }
    )
    server = False if config.no_thinking else None
    preserve = parsed.preserve_thinking
    options = PromptOptions(
        enable_thinking=server if asked is None else asked,
        reasoning_effort=parsed.reasoning_effort,
        # Templates differ in what an undefined value means, so it is always defined.
        preserve_thinking=config.preserve_thinking if preserve is None else preserve,
        template_options=parsed.template_options,
    )
    prompt = _build(tokenizer, template, parsed, options)
    limit, context_limited = output_limit(
        len(prompt.ids),
        parsed.request.output_limit,
        default=config.default_max_tokens,
        max_context=max_context,
    )
    decoder = OutputDecoder(
        tokenizer,
        thinking_open=prompt.thinking_open,
        stop_strings=parsed.request.stop_strings,
        tools=parsed.tools.callable,
    )
    request = Request(
        request_id=request_id,
        prompt_ids=prompt.ids,
        sampling=sampling_params(
            config,
            thinking=prompt.thinking_open,
            request=SamplingOverrides(
                **{name: getattr(parsed.request, name) for name in _SAMPLING_FIELDS}
            ),
            seed=parsed.request.seed,
        ),
        max_tokens=limit,
        stop_token_ids=tokenizer.stop_token_ids,
        host_paced=bool(parsed.request.stop_strings),
        decoder=decoder,
        deadline=deadline,
        context_limited=context_limited,
    )
    effort = resolve_effort(parsed.reasoning_effort).level or "default"
    return PreparedChat(
        request=request,
        decoder=decoder,
        thinking=effort if prompt.thinking_open else "off",
        message_count=len(parsed.messages),
        tool_count=len(parsed.tools.callable.names),
        preserve_thinking=bool(options.preserve_thinking),
    )


def output_limit(
    prompt_tokens: int, asked: int | None, *, default: int, max_context: int
) -> tuple[int, bool]:
    """The effective output limit, and whether the context cut it.

    min(asked or default, max_context - prompt):  prompt 100, asked 50, context 128 -> (28, True).
    Raises `RequestError` for a prompt longer than the context.
    """
    room = max_context - prompt_tokens
    if room < 0:
        raise RequestError(
            f"the prompt has {prompt_tokens} tokens, the context of this server holds "
            f"{max_context}; shorten the messages",
            code="context_length_exceeded",
            param="messages",
        )
    wanted = default if asked is None else asked
    return min(wanted, room), room < wanted


def sampling_params(
    config: Any, *, thinking: bool, request: SamplingOverrides, seed: int | None
) -> SamplingParams:
    """Resolved sampling: preset of the thinking mode, process flags, request, `--greedy`.

    `config` is a `ServeConfig` or `GenerateConfig`. The seed is the request's, else the
    process's, else fresh.
    """
    process = SamplingOverrides(**{name: getattr(config, name) for name in _SAMPLING_FIELDS})
    values = resolve_sampling(
        thinking=thinking, process=process, request=request, greedy=config.greedy
    )
    for choice in (seed, config.seed):
        if choice is not None:
            return SamplingParams(**dataclasses.asdict(values), seed=choice % _SEEDS)
    return SamplingParams(**dataclasses.asdict(values), seed=secrets.randbits(64))


def _build(
    tokenizer: Tokenizer, template: ChatTemplate, parsed: ParsedChat, options: PromptOptions
) -> Prompt:
    try:
        return build_prompt(
            tokenizer, template, parsed.messages, parsed.tools.definitions or None, options
        )
    except RequestError as error:
        if error.code is None and error.param == "messages":
            raise RequestError(error.message, code="invalid_prompt", param="messages") from error
        raise


def _switch(name: str, direct: bool | None, options: dict[str, Any]) -> bool | None:
    nested = options.get(name)
    if nested is not None and not isinstance(nested, bool):
        raise RequestError(
            f"chat_template_kwargs.{name}: expected true or false",
            param=f"chat_template_kwargs.{name}",
        )
    return agreed_switch({name: direct, f"chat_template_kwargs.{name}": nested})


def _effort(direct: str | None, options: dict[str, Any]) -> str | None:
    nested = options.get("reasoning_effort")
    if nested is None or nested == direct:
        return direct
    if direct is not None:
        raise RequestError(
            "reasoning_effort and chat_template_kwargs.reasoning_effort disagree; give one",
            code="conflicting_template_option",
            param="reasoning_effort",
        )
    return nested
