"""The registry of tasks and the mixture they are trained in.

`generate(task, split, seed)` is an endless, deterministic stream. The same samples serve
later training stages on the frozen model: drafters learn from the rendered conversations,
and image tasks register here with `Sample.images` filled.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping

from ninfer_jax.demo.arithmetic import ADDITION, arithmetic, question, sum_of_three
from ninfer_jax.demo.chinese import chinese
from ninfer_jax.demo.samples import Sample, Split, Task, Turn, split_of
from ninfer_jax.demo.story import story
from ninfer_jax.demo.structured import structured
from ninfer_jax.demo.tool_use import tool_use

GREETINGS = ("Hello", "Hi", "Hello!", "Hi!", "Good morning", "Hey")
WHO = ("Who are you?", "What are you?", "What is your name?")
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a tutor.",
    "Answer briefly.",
    "Be kind.",
)
THANKS = ("Thanks", "Thank you", "Thanks!", "Thank you!")


def chat(rng: random.Random) -> Sample:
    """Greetings and a word about itself."""
    kind = rng.randrange(3)
    if kind == 0:
        turn = Turn(rng.choice(GREETINGS), "A greeting.", "Hello! How can I help?")
    elif kind == 1:
        turn = Turn(
            rng.choice(WHO),
            "A question about me.",
            "I am the ninfer demo, a tiny model. Ask me a sum.",
        )
    else:
        turn = Turn(rng.choice(THANKS), "Thanks.", "You are welcome.")
    return Sample("chat", f"chat:{turn.question}:{turn.question}", (turn,))


def small_sum(rng: random.Random) -> Sample:
    """A one-digit sum without a think block."""
    sample = question("sum2", [rng.randrange(10), rng.randrange(10)], rng.choice(ADDITION))
    turn = dataclasses.replace(sample.turns[0], reasoning="")
    return dataclasses.replace(sample, turns=(turn,), thinking=False)


def conversation(rng: random.Random) -> Sample:
    """Two short questions in one chat; the first answer's reasoning may be gone."""
    tasks = (arithmetic, structured, chinese, chat)
    first, last = rng.choice(tasks)(rng), rng.choice(tasks)(rng)
    while split_of(first.key) != "train":
        first = rng.choice(tasks)(rng)
    turn = first.turns[0]
    if rng.random() < 0.5:
        turn = dataclasses.replace(turn, reasoning="")
    return dataclasses.replace(last, turns=(turn, *last.turns))


def in_company(rng: random.Random) -> Sample:
    """A question beside a system text, or beside a declared function that it does not need."""
    sample = rng.choice((arithmetic, structured, chinese, chat))(rng)
    if rng.random() < 0.5:
        return dataclasses.replace(sample, system=rng.choice(SYSTEMS))
    return dataclasses.replace(sample, tools=tool_use(rng).tools)


def without_thinking(task: Task) -> Task:
    """The task with the think block closed by the prompt."""

    def closed(rng: random.Random) -> Sample:
        sample = task(rng)
        turns = tuple(dataclasses.replace(turn, reasoning="") for turn in sample.turns)
        return dataclasses.replace(sample, turns=turns, thinking=False)

    return closed


SCORED: dict[str, Task] = {
    "reasoning": arithmetic,
    "structured": structured,
    "story": story,
    "chinese": chinese,
    "tools": tool_use,
}
"""Tasks by name; all but the story have one right answer."""

MIXTURE: Mapping[Task, float] = {
    arithmetic: 0.30,
    sum_of_three: 0.05,
    chinese: 0.09,
    structured: 0.21,
    tool_use: 0.20,
    story: 0.03,
    chat: 0.01,
    in_company: 0.03,
    conversation: 0.04,
    small_sum: 0.005,
    without_thinking(structured): 0.01,
    without_thinking(chinese): 0.01,
    without_thinking(tool_use): 0.01,
    without_thinking(story): 0.005,
}
"""Shares of the training stream."""


def generate(task: Task, split: Split, seed: int) -> Iterator[Sample]:
    """Endless samples of one task whose problems belong to `split`."""
    rng = random.Random(seed)
    while True:
        sample = task(rng)
        if sample.task == "chat" or split_of(sample.key) == split:
            yield sample


def training_stream(seed: int, extra: Mapping[str, float] | None = None) -> Iterator[Sample]:
    """Endless training samples in the shares of `MIXTURE`.

    Args:
      seed: fixes the stream.
      extra: weight per name of a task function, added to its share in the mixture, for a run
        that still lags in one of them.
    """
    rng = random.Random(seed)
    shares = dict(MIXTURE)
    by_name = {task.__name__: task for task in MIXTURE}
    for name, weight in (extra or {}).items():
        shares[by_name[name]] += weight
    tasks, weights = list(shares), list(shares.values())
    while True:
        sample = rng.choices(tasks, weights)[0](rng)
        if sample.task == "chat" or split_of(sample.key) == "train":
            yield sample
