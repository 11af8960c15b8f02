"""What a person does with `make demo`, on a real process."""

from __future__ import annotations

import json
import re

import httpx
import openai
import pytest

SUM = "What is 437 + 285?"


def ask(server, question: str, **fields) -> dict:
    """One chat completion as JSON."""
    with server.client() as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": question}], **fields}
        reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_sum_is_worked_out_and_right(server):
    reply = ask(server, SUM, temperature=0)
    choice = reply["choices"][0]
    assert choice["message"]["content"] == "722"
    assert "7+5+0=12" in choice["message"]["reasoning_content"]
    assert choice["finish_reason"] == "stop"
    usage = reply["usage"]
    details = usage["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < usage["completion_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_carries_the_same_answer(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": SUM}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    reasoning, content, usage = "", "", None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
    whole = ask(server, SUM, temperature=0)
    assert content == whole["choices"][0]["message"]["content"]
    assert reasoning == whole["choices"][0]["message"]["reasoning_content"]
    assert usage.completion_tokens == whole["usage"]["completion_tokens"]


def test_json_chinese_and_a_tool_call(server):
    reply = ask(server, "Return JSON: name is Ada, age is 36, city is Rome.", temperature=0)
    content = reply["choices"][0]["message"]["content"]
    assert json.loads(content) == {"name": "Ada", "age": 36, "city": "Rome"}
    reply = ask(server, "Read 4072 in Chinese.", temperature=0)
    assert reply["choices"][0]["message"]["content"] == "四千零七十二"
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    reply = ask(server, "What is the weather in Rome?", temperature=0, tools=[tool])
    call = reply["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == {"city": "Rome"}
    assert reply["choices"][0]["finish_reason"] == "tool_calls"


def test_the_same_seed_gives_the_same_story(server):
    fields = {"temperature": 1.0, "seed": 11}
    first = ask(server, "Tell me a story about a fox.", **fields)
    again = ask(server, "Tell me a story about a fox.", **fields)
    other = ask(server, "Tell me a story about a fox.", temperature=1.0, seed=12)
    text = first["choices"][0]["message"]["content"]
    assert text == again["choices"][0]["message"]["content"]
    assert text != other["choices"][0]["message"]["content"]
    assert "fox" in text


def test_log_lines_tell_what_happened_and_no_text(server):
    ask(server, SUM, temperature=0)
    done = [line for line in server.lines if " done | openai-chat" in line][-1]
    assert re.search(r"req#\d+ done \| openai-chat \| stop token \| prompt \d+ \| output \d+", done)
    assert re.search(r"decode \d+\.\d tok/s", done)
    assert any(re.search(r"req#\d+ started \| openai-chat", line) for line in server.lines)
    assert not any("437" in line for line in server.lines)


def test_nothing_was_compiled_after_listening(server):
    for question in ("Hello", SUM, "A story about a cat, please."):
        ask(server, question)
        ask(server, question, temperature=0)
    assert server.metric("ninfer_recompilations_total") == 0


def test_health_and_unknown_paths(server):
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/nothing").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"{not json", 400, "JSON"),
        (b"[]", 400, ""),
        (b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}', 404, "other"),
    ],
)
def test_bad_bodies_get_one_clear_error(server, body, status, word):
    reply = httpx.post(
        f"{server.url}/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == status
    assert word in reply.json()["error"]["message"]


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(server):
    with server.client() as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        content = "1 " * 9000
        body = {"model": model, "messages": [{"role": "user", "content": content}]}
        reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "8192" in error["message"]


def test_a_client_that_vanishes_leaves_nothing_running(server):
    with server.client() as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
            "stream": True,
            "max_tokens": 4000,
            "temperature": 2.0,
        }
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            next(reply.iter_lines())
    # The next request is served behind the cancelled one; then the gauges must be empty.
    ask(server, SUM, temperature=0)
    for _ in range(200):
        if server.metric("ninfer_device_state_used_slots") == 0:
            break
    assert server.metric("ninfer_device_state_used_slots") == 0
    assert server.metric("ninfer_device_kv_used_pages") == 0
