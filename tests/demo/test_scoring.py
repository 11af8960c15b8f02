"""Exact match, and the client that measures it."""

from __future__ import annotations

import itertools
import json

import httpx
import pytest

from ninfer_jax.demo.generator import SCORED, generate
from ninfer_jax.demo.samples import Sample, Turn, messages_of
from ninfer_jax.demo.scoring import correct
from tools.train_demo.accuracy import ask


def perfect(sample: Sample) -> dict:
    """The message of a server that answers rightly."""
    turn = sample.turns[-1]
    if turn.call is None:
        return {"role": "assistant", "content": turn.answer}
    name, arguments = turn.call
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize("task", SCORED)
def test_the_right_answer_is_right_and_a_neighbour_s_is_wrong(task):
    samples = list(itertools.islice(generate(SCORED[task], "held_out", seed=31), 100))
    for sample, other in itertools.pairwise(samples):
        assert correct(sample, perfect(sample))
        same = (sample.turns[-1].answer, sample.turns[-1].call) == (
            other.turns[-1].answer,
            other.turns[-1].call,
        )
        assert correct(sample, perfect(other)) == same
        assert not correct(sample, {"role": "assistant", "content": ""})
        assert not correct(sample, {"role": "assistant"})


FACTS = Sample("structured", "k", (Turn("?", "", '{"age": 36, "city": "Rome"}'),))
CALL = Sample("tools", "k", (Turn("?", "", "", call=("clock", {"city": "Rome"})),))


@pytest.mark.parametrize(
    ("content", "right"),
    [
        ('{"age": 36, "city": "Rome"}', True),
        ('{"age":36,"city":"Rome"}', True),
        ('{"city": "Rome", "age": 36}', False),
        ('{"age": "36", "city": "Rome"}', False),
        ('{"age": 36}', False),
        ('[36, "Rome"]', False),
        ('{"age": 36, "city": "Rome"', False),
    ],
)
def test_json_is_compared_as_values_in_order(content, right):
    assert correct(FACTS, {"content": content}) == right


@pytest.mark.parametrize(
    ("calls", "right"),
    [
        ([("clock", '{"city": "Rome"}')], True),
        ([("clock", '{"city":"Rome"}')], True),
        ([("clock", '{"city": "Oslo"}')], False),
        ([("clock", '{"place": "Rome"}')], False),
        ([("clock", "{}")], False),
        ([("clock", '{"city"')], False),
        ([("weather", '{"city": "Rome"}')], False),
        ([("clock", '{"city": "Rome"}')] * 2, False),
        ([], False),
    ],
)
def test_a_call_needs_name_and_arguments_once(calls, right):
    message = {
        "content": None,
        "tool_calls": [
            {"function": {"name": name, "arguments": arguments}} for name, arguments in calls
        ],
    }
    assert correct(CALL, message) == right


def test_a_call_where_text_was_expected_is_wrong():
    assert not correct(FACTS, {**perfect(CALL), "content": FACTS.turns[-1].answer})


@pytest.mark.parametrize("task", ["reasoning", "structured", "chinese", "tools"])
def test_the_client_sends_wire_form_and_no_answer(task):
    samples = list(itertools.islice(generate(SCORED[task], "held_out", seed=32), 60))
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        message = perfect(samples[len(sent)])
        sent.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": [{"message": message}]})

    transport = httpx.MockTransport(answer)
    with httpx.Client(base_url="http://demo", transport=transport) as client:
        for sample in samples:
            before = messages_of(sample, with_answer=False)
            assert ask(client, "ninfer-demo", sample)
            body = sent[-1]
            assert body["temperature"] == 0 and body["model"] == "ninfer-demo"
            assert body["messages"][-1]["role"] in ("user", "tool")
            assert len(body["messages"]) == len(before)
            assert ("tools" in body) == bool(sample.tools)
            for message in body["messages"]:
                for call in message.get("tool_calls", ()):
                    json.loads(call["function"]["arguments"])
                    assert call["id"] == body["messages"][-1]["tool_call_id"]
            assert messages_of(sample, with_answer=False) == before, "the sample is untouched"
    assert {len(body["messages"]) for body in sent} == ({1, 3} if task == "tools" else {1})
