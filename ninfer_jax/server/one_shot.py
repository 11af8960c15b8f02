"""One prompt, one answer, no HTTP: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import queue
from pathlib import Path
from typing import Any, TextIO

from ninfer_jax.config import GenerateConfig
from ninfer_jax.config.generate import MOST_NEW_TOKENS
from ninfer_jax.engine.request import (
    Delta,
    Engine,
    Failed,
    Finished,
    OutputEvent,
    Request,
    TokenDecoder,
    TokenVerdict,
)
from ninfer_jax.errors import ConfigError, RequestError
from ninfer_jax.server.conversation import check_messages
from ninfer_jax.server.prepare import output_limit, sampling_params
from ninfer_jax.text.detokenizer import Detokenizer
from ninfer_jax.text.json_text import parse_json
from ninfer_jax.text.output import OutputDecoder
from ninfer_jax.text.prompt import PromptOptions, build_prompt
from ninfer_jax.text.sampling_defaults import SamplingOverrides
from ninfer_jax.text.template import ChatTemplate
from ninfer_jax.text.tokenizer import Tokenizer

_REQUEST_ID = 1


class RawDecoder:
    """Decodes every token to text, control tokens too, in one channel."""

    reasoning_tokens = 0

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer()
        self._text: list[str] = []

    def push(self, token_id: int) -> TokenVerdict:
        self._text.append(self._detokenizer.push(self._tokenizer.token_bytes(token_id)))
        return TokenVerdict.CONTINUE

    def take(self) -> tuple[str, str]:
        text = "".join(self._text)
        self._text.clear()
        return "", text

    def finish(self) -> tuple[str, str]:
        self._text.append(self._detokenizer.finish())
        return self.take()


class AnswerPrinter:
    """Writes text as it comes and ends it in exactly one newline."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._held = ""

    def write(self, text: str) -> None:
        """Writes all but newlines at the end, which may be the last ones."""
        known = self._held + text
        shown = known.rstrip("\n")
        if shown:
            self._stream.write(shown)
            self._stream.flush()
        self._held = known[len(shown) :]

    def end(self) -> None:
        self._stream.write("\n")
        self._stream.flush()


@dataclasses.dataclass(frozen=True)
class Conversation:
    """What the prompt is made of."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


def read_conversation(config: GenerateConfig) -> Conversation:
    """Messages and tools of the command. Raises `ConfigError` for a file that is no good."""
    if config.prompt is not None:
        return Conversation([{"role": "user", "content": config.prompt}])
    name = f"--messages {config.messages}"
    try:
        data = parse_json(Path(config.messages).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{name}: not JSON: {error}") from error
    messages, tools = data, None
    if isinstance(data, dict):
        messages, tools = data.get("messages"), data.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise ConfigError(f"{name}: tools: expected a list")
    try:
        return Conversation(check_messages(messages), tools)
    except RequestError as error:
        raise ConfigError(f"{name}: {error.message}") from error


def prepare_one_shot(
    config: GenerateConfig,
    conversation: Conversation,
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    max_context: int,
) -> Request:
    """The request of the command. Raises `ConfigError` or `RequestError`."""
    unknown = [i for i in config.stop_token_id if i >= tokenizer.vocabulary_size]
    if unknown:
        raise ConfigError(
            f"--stop-token-id {unknown[0]}: expected 0 to {tokenizer.vocabulary_size - 1}"
        )
    options = PromptOptions(
        enable_thinking=False if config.no_thinking else None,
        reasoning_effort=config.reasoning_effort,
        preserve_thinking=config.preserve_thinking,
    )
    prompt = build_prompt(tokenizer, template, conversation.messages, conversation.tools, options)
    limit, context_limited = output_limit(
        len(prompt.ids), config.max_new, default=MOST_NEW_TOKENS, max_context=max_context
    )
    decoder: TokenDecoder
    if config.raw_output:
        decoder = RawDecoder(tokenizer)
    else:
        # Without a tool set, calls are printed as the model writes them.
        decoder = OutputDecoder(
            tokenizer,
            thinking_open=prompt.thinking_open,
            stop_strings=config.stop,
            reasoning_stop_strings=config.reasoning_stop,
        )
    return Request(
        request_id=_REQUEST_ID,
        prompt_ids=prompt.ids,
        sampling=sampling_params(
            config, thinking=prompt.thinking_open, request=SamplingOverrides(), seed=config.seed
        ),
        max_tokens=limit,
        stop_token_ids=tokenizer.stop_token_ids | frozenset(config.stop_token_id),
        host_paced=bool(config.stop or config.reasoning_stop),
        decoder=decoder,
        context_limited=context_limited,
    )


@dataclasses.dataclass
class Output:
    """The tokens of an output, and of each whether it was an accepted draft."""

    ids: list[int] = dataclasses.field(default_factory=list)
    drafted: list[bool] = dataclasses.field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Appends what was committed with a delta."""
        self.ids.extend(delta.token_ids)
        self.drafted.extend(delta.drafted or [False] * len(delta.token_ids))

    def marked(self, tokenizer: Tokenizer) -> str:
        """The text of all tokens, runs of accepted drafts in brackets.

        A character made of several tokens stands where its last one does.
        """
        characters, parts = codecs.getincrementaldecoder("utf-8")("replace"), []
        for drafted, run in itertools.groupby(
            zip(self.ids, self.drafted, strict=True), key=lambda pair: pair[1]
        ):
            data = b"".join(tokenizer.token_bytes(token, hide_special=False) for token, _ in run)
            text = characters.decode(data)
            parts.append(f"[{text}]" if drafted else text)
        return "".join((*parts, characters.decode(b"", final=True)))


def answer(
    engine: Engine, request: Request, *, stdout: TextIO, stderr: TextIO
) -> tuple[Finished, Output]:
    """Runs a request and prints it; returns its outcome and the output.

    Raises the engine's error if it fails. On an interrupt the request is cancelled first.
    """
    events: queue.SimpleQueue[OutputEvent] = queue.SimpleQueue()
    engine.submit(request, events.put)
    output = Output()
    printer = AnswerPrinter(stdout)
    reasoning_shown = False
    try:
        while True:
            event = events.get()
            if isinstance(event, Delta):
                output.add(event)
                if event.reasoning:
                    reasoning_shown = True
                    stderr.write(event.reasoning)
                    stderr.flush()
                if event.content:
                    if reasoning_shown:
                        stderr.write("\n")
                        stderr.flush()
                        reasoning_shown = False
                    printer.write(event.content)
            elif isinstance(event, Finished):
                break
            elif isinstance(event, Failed):
                raise event.error
    except KeyboardInterrupt:
        engine.cancel(request.request_id)
        raise
    if reasoning_shown:
        stderr.write("\n")
    printer.end()
    return event, output
