"""Request fields that ask for something this server cannot guarantee: one table.

A request that asks for a guarantee that cannot be given is refused (400 with a code); one that
merely carries such a field with a neutral value runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ninfer_jax.errors import RequestError
from ninfer_jax.server.chat_request import ChatRequest


@dataclasses.dataclass(frozen=True)
class Refusal:
    """One field.

    Attributes:
      field: its name.
      asks: says whether a value that is not null asks for something.
      code: code of the error.
      advice: what to do instead.
    """

    field: str
    asks: Callable[[Any], bool]
    code: str
    advice: str


def _always(value: Any) -> bool:
    return True


def _not_empty(value: Any) -> bool:
    return bool(value)


def _not_equal_to(neutral: Any) -> Callable[[Any], bool]:
    return lambda value: value != neutral


def _any_bias(value: Any) -> bool:
    return not isinstance(value, dict) or any(bias != 0 for bias in value.values())


def _any_member_set(value: Any) -> bool:
    return not isinstance(value, dict) or any(member is not None for member in value.values())


def _not_text_format(value: Any) -> bool:
    return not isinstance(value, dict) or value.get("type") != "text"


_CONSTRAINED = "constrained_decoding_not_supported"
_LEAVE_OUT = "leave it out"

REFUSALS: tuple[Refusal, ...] = (
    Refusal("n", _not_equal_to(1), "n_not_supported", "send one request per answer"),
    Refusal("logit_bias", _any_bias, "logit_bias_not_supported", _LEAVE_OUT),
    Refusal("logprobs", _not_empty, "logprobs_not_supported", _LEAVE_OUT),
    Refusal("top_logprobs", _not_empty, "logprobs_not_supported", _LEAVE_OUT),
    Refusal("response_format", _not_text_format, "response_format_not_supported", "use type text"),
    Refusal("structured_outputs", _not_empty, _CONSTRAINED, _LEAVE_OUT),
    Refusal("guided_json", _always, _CONSTRAINED, _LEAVE_OUT),
    Refusal("guided_regex", _always, _CONSTRAINED, _LEAVE_OUT),
    Refusal("guided_choice", _always, _CONSTRAINED, _LEAVE_OUT),
    Refusal("guided_grammar", _always, _CONSTRAINED, _LEAVE_OUT),
    Refusal("grammar", _always, _CONSTRAINED, _LEAVE_OUT),
    Refusal("modalities", _not_equal_to(["text"]), "modality_not_supported", "use ['text']"),
    Refusal("web_search_options", _always, "web_search_not_supported", _LEAVE_OUT),
    Refusal("moderation", _always, "moderation_not_supported", _LEAVE_OUT),
    Refusal("verbosity", _not_equal_to("medium"), "verbosity_not_supported", "use medium"),
    Refusal("store", _not_empty, "store_not_supported", "use false"),
    Refusal("functions", _not_empty, "legacy_tools_not_supported", "use tools"),
    Refusal(
        "function_call",
        lambda value: value not in ("none", "auto"),
        "legacy_tools_not_supported",
        "use tools and tool_choice",
    ),
    Refusal(
        "repetition_penalty",
        _not_equal_to(1),
        "repetition_penalty_not_supported",
        "use presence_penalty or frequency_penalty",
    ),
    Refusal(
        "mm_processor_kwargs", _any_member_set, "mm_processor_kwargs_not_supported", _LEAVE_OUT
    ),
)


def refuse_unsupported(request: ChatRequest) -> None:
    """Raises `RequestError` for the first field that asks for something unsupported."""
    for refusal in REFUSALS:
        value = getattr(request, refusal.field)
        if value is not None and refusal.asks(value):
            raise RequestError(
                f"{refusal.field}: this value is not supported; {refusal.advice}",
                code=refusal.code,
                param=refusal.field,
            )
