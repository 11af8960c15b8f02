"""Samples as the text that the model reads and writes, through the demo's chat template."""

from __future__ import annotations

import functools
import importlib.resources
import json

import jinja2.sandbox

from ninfer_jax.demo.samples import Sample, messages_of


@functools.cache
def chat_template() -> jinja2.Template:
    """The demo's template in the environment that chat templates expect."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    source = importlib.resources.files("ninfer_jax.demo").joinpath("chat_template.jinja")
    return environment.from_string(source.read_text(encoding="utf-8"))


def conversation_text(sample: Sample) -> str:
    """The whole conversation with all answers."""
    return chat_template().render(
        messages=messages_of(sample, with_answer=True),
        tools=list(sample.tools) or None,
        add_generation_prompt=False,
        enable_thinking=sample.thinking,
        preserve_thinking=True,
    )
