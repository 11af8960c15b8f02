"""Chat templates: messages to a rendered prompt, and the rendered prompt to ids.

The artifact's own Jinja template is executed, in a sandbox. Caller text is marked before and
unmarked after (`caller_text`), so that a template's control tokens become ids while the same
characters written by a caller stay text. Text between two control tokens is encoded as one
piece: ids equal those of plain rendering wherever callers quote no control token.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.sandbox

from ninfer_jax.errors import ConfigError, RequestError
from ninfer_jax.text.caller_text import Marks
from ninfer_jax.text.history import normalise_messages
from ninfer_jax.text.json_text import dump_json
from ninfer_jax.text.tokenizer import Tokenizer

LARGEST_TEMPLATE = 1 << 20
"""Longest accepted template source in characters."""

LARGEST_PROMPT = 1 << 28
"""Longest rendered prompt in characters; a template that writes more is stopped."""

_LARGEST_REPEAT = 1 << 20
_RENDERING_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
_INLINE_REASONING = "before\n</think>\nafter"


@dataclasses.dataclass(frozen=True)
class RenderedPrompt:
    """What a template wrote, with caller text still marked.

    Attributes:
      marked: the rendered text with marks.
      marks: the marks used.
    """

    marked: str
    marks: Marks

    @property
    def text(self) -> str:
        """The prompt as a person reads it."""
        return self.marks.remove(self.marked)


class ChatTemplate:
    """One compiled chat template.

    Attributes:
      source: the template text.
      splits_inline_reasoning: True if the template splits assistant content at `</think>`; found
        out by rendering such a turn.
      knows_developer: True if the template has a role `developer`; else that role is rendered as
        `system`.
    """

    def __init__(
        self,
        source: str,
        *,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        largest_prompt: int = LARGEST_PROMPT,
    ):
        """Compiles `source`. Raises `ConfigError` with the line of a syntax error."""
        if not source.strip() or len(source) > LARGEST_TEMPLATE:
            raise ConfigError(
                f"chat template: {len(source)} characters found, expected 1 to {LARGEST_TEMPLATE}"
            )
        self.source = source
        self.knows_developer = "developer" in source
        self._largest_prompt = largest_prompt
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self._reserved = frozenset(environment.globals)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"chat template, line {error.lineno}: {error.message}") from error
        except RecursionError:
            raise ConfigError("chat template: nested too deeply") from None
        self.splits_inline_reasoning = self._probe_inline_reasoning()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        preserve_thinking: bool | None = None,
        **extra: Any,
    ) -> RenderedPrompt:
        """Renders messages in wire form (see `history`) and tool definitions.

        An option that is None is not passed, so the template's own default holds; `extra` goes
        to the template as it is. Raises `RequestError` if the template refuses the messages.
        """
        shadowed = self._reserved.intersection(extra)
        if shadowed:
            raise RequestError(
                f"chat_template_kwargs: {min(shadowed)!r} is a function of the template engine",
                code="chat_template_option_not_supported",
                param="chat_template_kwargs",
            )
        try:
            turns = normalise_messages(
                messages,
                split_inline_reasoning=self.splits_inline_reasoning,
                developer_is_system=not self.knows_developer,
            )
            marks = Marks.absent_from([self.source, turns, tools, extra])
            variables = {
                **marks.mark(extra),
                "messages": [marks.mark_message(turn) for turn in turns],
                "tools": marks.mark(tools) if tools else None,
                "add_generation_prompt": add_generation_prompt,
                **_given(
                    enable_thinking=enable_thinking,
                    reasoning_effort=reasoning_effort,
                    preserve_thinking=preserve_thinking,
                ),
            }
            return RenderedPrompt(self._run(variables), marks)
        except RecursionError:
            raise RequestError("messages are nested too deeply", param="messages") from None

    def _probe_inline_reasoning(self) -> bool:
        turns = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": _INLINE_REASONING},
        ]
        variables = {"messages": turns, "tools": None, "add_generation_prompt": False}
        try:
            rendered = self._run({**variables, "preserve_thinking": True})
        except (ConfigError, RequestError):
            return False
        return "before" in rendered and _INLINE_REASONING not in rendered

    def _run(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                length += len(piece)
                if length > self._largest_prompt:
                    raise RequestError(
                        f"the chat template wrote more than {self._largest_prompt} characters",
                        param="messages",
                    )
        except _Refusal as error:
            raise RequestError(f"chat template: {error.message}", param="messages") from error
        except jinja2.sandbox.SecurityError as error:
            raise ConfigError(f"chat template: not allowed in the sandbox: {error}") from error
        except _RENDERING_FAULTS as error:
            raise RequestError(
                f"the chat template cannot render these messages: {error}", param="messages"
            ) from error
        return "".join(pieces)


def encode(rendered: RenderedPrompt, tokenizer: Tokenizer) -> list[int]:
    """Turns a rendered prompt into ids: control tokens of the template, everything else text."""
    return tokenizer.encode_segments(
        [
            part if isinstance(part, str) else tokenizer.id_of(part[0])
            for part in rendered.marks.split(rendered.marked, tokenizer.control_pattern)
        ]
    )


class _Refusal(jinja2.TemplateError):
    """Raised by a template through `raise_exception`."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox that also bounds repetition (`'x' * n`) and powers."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.sandbox.SecurityError("powers")
        for sequence, count in ((left, right), (right, left)):
            repeats = isinstance(sequence, (str, list, tuple)) and isinstance(count, int)
            if repeats and len(sequence) * count > _LARGEST_REPEAT:
                raise jinja2.sandbox.SecurityError("repetition beyond a million characters")
        return super().call_binop(context, operator, left, right)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _raise_exception(message: str) -> None:
    raise _Refusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter of chat templates: no HTML escaping, key order kept."""
    if isinstance(value, jinja2.Undefined):
        raise jinja2.UndefinedError("tojson of an undefined value")
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        return dump_json(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
