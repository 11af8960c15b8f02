"""Answers that programs read: JSON and tool calls."""

from __future__ import annotations

import json
import random
import re

from ninfer_jax.demo.structured import KEYS, structured
from ninfer_jax.demo.tool_use import CASES, tool_use
from tools.train_demo.render import conversation_text


def test_json_answers_hold_the_facts_of_the_question():
    rng = random.Random(13)
    for _ in range(1_000):
        turn = structured(rng).turns[0]
        facts = json.loads(turn.answer)
        assert turn.answer == json.dumps(facts)
        assert 2 <= len(facts) <= 4 and set(facts) <= set(KEYS)
        listed = ", ".join(f"{key} is {fact}" for key, fact in facts.items())
        assert turn.question.endswith(listed + ".")
        assert turn.reasoning == "Keys: " + ", ".join(facts)


def test_arguments_are_copied_from_question_and_declaration():
    rng = random.Random(14)
    names = set()
    for _ in range(1_000):
        sample = tool_use(rng)
        declared = sample.tools[0]["function"]
        name, arguments = sample.turns[0].call
        assert name == declared["name"]
        assert list(arguments) == declared["parameters"]["required"]
        assert list(arguments) == list(declared["parameters"]["properties"])
        words = re.findall(r"\w+", sample.turns[0].question)
        assert all(value in words for value in arguments.values())
        names.add(name)
    assert len(names) == 3 * len(CASES)


def test_results_become_sentences():
    rng = random.Random(15)
    seen = 0
    while seen < 300:
        sample = tool_use(rng)
        if len(sample.turns) == 1:
            continue
        seen += 1
        result = sample.turns[1]
        assert result.role == "tool" and result.call is None
        assert all(str(value) in result.answer for value in json.loads(result.question).values())


def test_a_call_renders_in_the_xml_form():
    rng = random.Random(16)
    sample = tool_use(rng)
    while sample.turns[0].call[0] != "convert" or len(sample.turns) != 2:
        sample = tool_use(rng)
    arguments = sample.turns[0].call[1]
    text = conversation_text(sample)
    declaration = json.dumps(sample.tools[0])
    assert text.startswith(f"<|im_start|>system\n# Tools\n{declaration}\n")
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    call = f"<tool_call>\n<function=convert>\n{parameters}</function>\n</tool_call>"
    assert f"<think>\nI call convert.\n</think>\n\n{call}<|im_end|>\n" in text
    response = f"<tool_response>\n{sample.turns[1].question}\n</tool_response>"
    assert f"<|im_start|>user\n{response}<|im_end|>\n" in text
    assert text.endswith(f"</think>\n\n{sample.turns[1].answer}<|im_end|>\n")
