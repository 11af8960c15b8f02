"""The configuration of the one-shot command, which answers one prompt and ends."""

from __future__ import annotations

import dataclasses

from ninfer_jax.config.options import option, same_option
from ninfer_jax.config.serve import LARGEST_BUDGET, ServeConfig
from ninfer_jax.config.values import Choice, Integer, Repeated, Switch, Text, file_path
from ninfer_jax.errors import ConfigError

PROMPT = "Prompt"
OUTPUT = "Output"
MOST_NEW_TOKENS = 128
_SHARED = (
    "kv_capacity",
    "kv_dtype",
    "device",
    "prefill_chunk",
    "no_cuda_graph",
    "spec",
    "draft_tokens",
    "lm_head_draft",
    "vision",
    "chat_template",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "greedy",
    "no_thinking",
    "preserve_thinking",
    "log_level",
)


def _same(name: str, **changes: object) -> object:
    return same_option(ServeConfig, name, **changes)


@dataclasses.dataclass(frozen=True)
class GenerateConfig:
    """Options of `ninfer_jax.generate`; those shared with the server come from its table."""

    model: str | None = _same("model")
    prompt: str | None = option(None, Text(), "the user's message", group=PROMPT)
    messages: str | None = option(
        None, file_path(), "JSON file with messages and tools", group=PROMPT
    )
    max_context: int = _same("max_context", default=2048)
    kv_capacity: int | str | None = _same("kv_capacity")
    max_new: int | None = option(
        None,
        Integer(0),
        f"most output tokens; default: default_max_tokens of the config file, else "
        f"{MOST_NEW_TOKENS}",
        group=OUTPUT,
    )
    prefill_chunk: int = _same("prefill_chunk")
    kv_dtype: str = _same("kv_dtype")
    device: int = _same("device")
    no_cuda_graph: bool = _same("no_cuda_graph")
    spec: str | None = _same("spec")
    draft_tokens: int | None = _same("draft_tokens")
    lm_head_draft: bool = _same("lm_head_draft")
    vision: bool = _same("vision")
    chat_template: str | None = _same("chat_template")
    temperature: float | None = _same("temperature")
    top_p: float | None = _same("top_p")
    top_k: int | None = _same("top_k")
    min_p: float | None = _same("min_p")
    presence_penalty: float | None = _same("presence_penalty")
    frequency_penalty: float | None = _same("frequency_penalty")
    seed: int = _same("seed", default=0)
    greedy: bool = _same("greedy")
    no_thinking: bool = _same("no_thinking")
    preserve_thinking: bool = _same("preserve_thinking")
    reasoning_effort: str | None = option(
        None,
        Choice(("none", "minimal", "low", "medium", "high", "xhigh", "max")),
        "how much to think",
        group=PROMPT,
    )
    thinking_budget: int | None = option(
        None, Integer(1, LARGEST_BUDGET), "most thinking tokens", group=PROMPT
    )
    stop: tuple[str, ...] = option(
        (), Repeated(Text()), "ends the answer; repeatable", group=OUTPUT
    )
    reasoning_stop: tuple[str, ...] = option(
        (), Repeated(Text()), "ends the reasoning; repeatable", group=OUTPUT
    )
    stop_token_id: tuple[int, ...] = option(
        (), Repeated(Integer(0)), "ends the output; repeatable", group=OUTPUT
    )
    raw_output: bool = option(
        False, Switch(), "print all decoded text, markers included", group=OUTPUT
    )
    print_token_ids: bool = option(
        False, Switch(), "list the output ids in the summary", group=OUTPUT
    )
    show_drafts: bool = option(
        False,
        Switch(),
        "print the output once more, with accepted drafts in brackets",
        group=OUTPUT,
    )
    json: bool = option(False, Switch(), "the answer is one JSON object", group=OUTPUT)
    json_schema: str | None = option(
        None, file_path(), "the answer follows this schema", group=OUTPUT
    )
    log_level: str = _same("log_level")

    def engine_config(self) -> ServeConfig:
        """The server configuration that builds the engine of this command: one lane."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return ServeConfig(
            model=self.model,
            max_context=self.max_context,
            seed=self.seed,
            default_max_tokens=self.max_new or MOST_NEW_TOKENS,
            max_concurrency=1,
            **shared,
        )


def check_generate(config: GenerateConfig) -> None:
    """Refuses options that contradict each other. Raises `ConfigError`."""
    if (config.prompt is None) == (config.messages is None):
        found = "neither" if config.prompt is None else "both"
        raise ConfigError(f"found {found} of --prompt and --messages, expected exactly one")
    if config.no_thinking:
        if config.thinking_budget is not None:
            raise ConfigError("--thinking-budget and --no-thinking contradict each other")
        if config.reasoning_effort not in (None, "none"):
            raise ConfigError(
                f"--reasoning-effort {config.reasoning_effort} and --no-thinking contradict "
                "each other"
            )
    if config.json and config.json_schema is not None:
        raise ConfigError("found both of --json and --json-schema, expected one")
