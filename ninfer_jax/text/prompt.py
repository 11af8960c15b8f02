"""Messages to prompt ids: the one path of the server, `generate` and token counting."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_jax.errors import RequestError
from ninfer_jax.text.channels import ASCII_WHITESPACE
from ninfer_jax.text.template import ChatTemplate, encode
from ninfer_jax.text.thinking import agreed_switch, resolve_effort
from ninfer_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class PromptOptions:
    """How a conversation is rendered.

    Attributes:
      enable_thinking: thinking switch, or None for the template's default.
      reasoning_effort: effort word of any API (see `thinking.resolve_effort`), or None.
      preserve_thinking: keep reasoning of closed turns, or None for the template's default.
      continue_final: the last message is an assistant turn that generation continues.
      template_options: further variables for the template.
    """

    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    continue_final: bool = False
    template_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt ready for the engine.

    Attributes:
      ids: token ids, at least one.
      thinking_open: True if the output starts inside reasoning.
      text: the rendered prompt as a person reads it.
    """

    ids: tuple[int, ...]
    thinking_open: bool
    text: str


def build_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    options: PromptOptions = PromptOptions(),
) -> Prompt:
    """Renders and encodes a conversation. Raises `RequestError`."""
    effort = resolve_effort(options.reasoning_effort)
    thinking = agreed_switch(
        {"enable_thinking": options.enable_thinking, "reasoning_effort": effort.thinking}
    )
    rendered = template.render(
        messages,
        tools,
        add_generation_prompt=not options.continue_final,
        enable_thinking=thinking,
        reasoning_effort=effort.level,
        preserve_thinking=options.preserve_thinking,
        **_without_named(options.template_options),
    )
    ids = encode(rendered, tokenizer)
    text = rendered.text
    if options.continue_final:
        ids, text = _reopen(ids, text, tokenizer, messages)
    if not ids:
        raise RequestError("the chat template rendered an empty prompt", param="messages")
    return Prompt(tuple(ids), ends_inside_thinking(ids, tokenizer), text)


def ends_inside_thinking(ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Says whether a prompt ends with an open think marker and nothing but white space."""
    known = tokenizer.known
    if known.think_open is None:
        return False
    for token_id in reversed(ids):
        if token_id == known.think_open:
            return True
        if tokenizer.token_bytes(token_id).strip(ASCII_WHITESPACE.encode()):
            return False
    return False


def _without_named(template_options: Mapping[str, Any]) -> dict[str, Any]:
    named = {
        "messages",
        "tools",
        "add_generation_prompt",
        "enable_thinking",
        "reasoning_effort",
        "preserve_thinking",
    }
    clash = named.intersection(template_options)
    if clash:
        raise RequestError(
            f"chat_template_kwargs: {min(clash)!r} is set by the request itself",
            code="chat_template_option_not_supported",
            param="chat_template_kwargs",
        )
    return dict(template_options)


def _reopen(
    ids: list[int],
    text: str,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[int], str]:
    """Drops the end of the last turn, which must be the assistant's."""
    if not messages or messages[-1].get("role") != "assistant":
        raise RequestError("only an assistant message can be continued", param="messages")
    end_of_turn = tokenizer.known.end_of_turn
    last = len(ids) - 1
    while last >= 0 and ids[last] != end_of_turn:
        last -= 1
    if last < 0 or tokenizer.decode(ids[last + 1 :]).strip():
        raise RequestError(
            "the chat template does not end the last turn, so it cannot be continued",
            param="messages",
        )
    spelling = tokenizer.added_tokens[end_of_turn].spelling
    return ids[:last], text[: text.rindex(spelling)]
