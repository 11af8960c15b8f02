"""Splits, determinism and the shape of every task's samples."""

from __future__ import annotations

import itertools
import random

import pytest

from ninfer_jax.demo import generator
from ninfer_jax.demo.generator import MIXTURE, SCORED, generate, training_stream
from ninfer_jax.demo.samples import HELD_OUT_SHARE, messages_of, split_of

COUNT = 600


def take(stream, count=COUNT):
    return list(itertools.islice(stream, count))


@pytest.mark.parametrize("task", SCORED)
def test_train_and_held_out_share_no_problem(task):
    train = {sample.key for sample in take(generate(SCORED[task], "train", seed=1))}
    held_out = {sample.key for sample in take(generate(SCORED[task], "held_out", seed=1))}
    assert not train & held_out
    assert {split_of(key) for key in train} == {"train"}
    assert {split_of(key) for key in held_out} == {"held_out"}


@pytest.mark.parametrize("task", SCORED)
def test_held_out_questions_are_never_trained(task):
    """The question text of a scored turn says which problem it is, so it is disjoint too."""
    train = {
        turn.question
        for sample in take(training_stream(seed=2), 4_000)
        for turn in sample.turns
        if turn.role == "user"
    }
    held_out = take(generate(SCORED[task], "held_out", seed=20_000), 200)
    if task != "story":
        assert not {sample.turns[0].question for sample in held_out} & train
    assert len({sample.key for sample in held_out}) > 50


def test_addition_is_one_problem_in_both_orders():
    one = generator.question("sum2", [437, 285], "{0}+{1}")
    other = generator.question("sum2", [285, 437], "{0}+{1}")
    assert one.key == other.key
    closed = generator.small_sum(random.Random(0))
    assert closed.key.startswith("sum2:"), "a closed think block does not make a new problem"


def test_earlier_turns_of_training_conversations_are_training_problems():
    rng = random.Random(3)
    originals = []

    def remember(sample):
        originals.append(sample.key)
        return sample

    tasks = {}
    for name in ("arithmetic", "structured", "chinese", "chat"):
        task = getattr(generator, name)
        tasks[name] = lambda rng, task=task: remember(task(rng))
    with pytest.MonkeyPatch.context() as patch:
        for name, task in tasks.items():
            patch.setattr(generator, name, task)
        for _ in range(300):
            originals.clear()
            generator.conversation(rng)
            # The order of making is first, last, then replacements of first.
            first = originals[0] if len(originals) == 2 else originals[-1]
            assert split_of(first) == "train"


def test_one_problem_in_sixteen_is_held_out():
    share = sum(split_of(f"chinese:{n}") == "held_out" for n in range(10_000)) / 10_000
    assert share == pytest.approx(1 / HELD_OUT_SHARE, rel=0.1)


def test_streams_are_functions_of_their_seed():
    assert take(training_stream(seed=5)) == take(training_stream(seed=5))
    assert take(training_stream(seed=5)) != take(training_stream(seed=6))
    for task in SCORED.values():
        assert take(generate(task, "held_out", 7), 50) == take(generate(task, "held_out", 7), 50)


def test_streams_are_the_same_on_every_python():
    """A change here changes what the checked-in model was scored on."""
    reasoning = next(generate(SCORED["reasoning"], "held_out", seed=20_000))
    chinese = next(generate(SCORED["chinese"], "held_out", seed=20_000))
    assert (reasoning.key, chinese.key) == ("difference:[821, 36]", "chinese:941")


def test_mixture_covers_every_task_and_sums_to_one():
    assert sum(MIXTURE.values()) == pytest.approx(1.0)
    seen = {sample.task for sample in take(training_stream(seed=8), 2_000)}
    assert seen == {*SCORED, "chat"}


def test_a_closed_think_block_has_no_reasoning():
    samples = take(training_stream(seed=9), 3_000)
    closed = [sample for sample in samples if not sample.thinking]
    assert {sample.task for sample in closed} == {*SCORED}
    assert not any(turn.reasoning for sample in closed for turn in sample.turns)
    assert all(sample.turns[-1].reasoning for sample in samples if sample.thinking)


def test_messages_end_with_the_question_or_the_answer():
    for sample in take(training_stream(seed=10), 300):
        asked = messages_of(sample, with_answer=False)
        answered = messages_of(sample, with_answer=True)
        assert asked == answered[:-1]
        assert asked[-1]["role"] in ("user", "tool")
        assert answered[-1]["role"] == "assistant"
        assert answered[-1]["content"] == sample.turns[-1].answer
