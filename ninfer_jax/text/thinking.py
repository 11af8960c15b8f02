"""Whether a request thinks, and how hard.

Three sources may set the switch; the first that speaks wins: the request, the server's flag, the
template's default. A request may set it in several members (`enable_thinking` at two places,
`reasoning_effort: none`, Anthropic's `thinking.type`), which must then agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ninfer_jax.errors import RequestError

EFFORT_LEVELS = ("low", "medium", "xhigh")
"""Levels that the chat template knows."""

_LEVEL_BY_WORD = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "xhigh",
    "xhigh": "xhigh",
    "max": "xhigh",
}
_UNSPECIFIED = frozenset(("default", "auto"))


@dataclasses.dataclass(frozen=True)
class Effort:
    """What an effort word of a request means.

    Attributes:
      level: level for the template, or None for the template's default.
      thinking: False if the word switches thinking off, else None.
    """

    level: str | None = None
    thinking: bool | None = None


@dataclasses.dataclass(frozen=True)
class ThinkingMode:
    """The resolved thinking mode of one request."""

    enabled: bool
    effort: str | None


def resolve_effort(word: str | None) -> Effort:
    """Maps an effort word of any API to a level of the template.

    `high` and `max` mean `xhigh`, `minimal` means `low`, `none` switches thinking off, and no
    word, `default` or `auto` leave the choice to the template. Raises `RequestError` otherwise.
    """
    if word is None or word in _UNSPECIFIED:
        return Effort()
    if word == "none":
        return Effort(thinking=False)
    if not isinstance(word, str) or word not in _LEVEL_BY_WORD:
        known = ", ".join(["none", *_LEVEL_BY_WORD])
        raise RequestError(
            f"reasoning_effort is {word!r}; expected one of {known}",
            code="reasoning_effort_not_supported",
            param="reasoning_effort",
        )
    return Effort(level=_LEVEL_BY_WORD[word])


def agreed_switch(switches: Mapping[str, bool | None]) -> bool | None:
    """The one value of an option that a request may spell in several members.

    None means that a member is absent; the result is None if all are. Raises `RequestError` with
    code `conflicting_template_option` if two members disagree.
    """
    given = {name: value for name, value in switches.items() if value is not None}
    if len(set(given.values())) > 1:
        first_on = next(name for name, value in given.items() if value)
        first_off = next(name for name, value in given.items() if not value)
        raise RequestError(
            f"{first_on} asks for what {first_off} refuses; give one of them, or the same in both",
            code="conflicting_template_option",
            param=first_on,
        )
    return next(iter(given.values()), None)


def resolve_thinking(
    *,
    request: Mapping[str, bool | None] | None = None,
    effort: str | None = None,
    server: bool | None = None,
    template: bool = True,
) -> ThinkingMode:
    """Resolves the thinking switch: request, then server flag, then template default.

    `request` maps the request members that set the switch to their values. Effort `none` is one
    more such member; other levels do not switch thinking on. Raises `RequestError`.
    """
    resolved = resolve_effort(effort)
    asked = agreed_switch({**(request or {}), "reasoning_effort": resolved.thinking})
    for choice in (asked, server):
        if choice is not None:
            return ThinkingMode(choice, resolved.level)
    return ThinkingMode(template, resolved.level)
