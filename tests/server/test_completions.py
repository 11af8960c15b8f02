"""Whole replies of chat completions."""

from __future__ import annotations

import re

import pytest

from ninfer_jax.engine.request import Speculation

CALL = "<tool_call>\n<function=lookup>\n<parameter=q>\nx\n</parameter>\n</function>\n</tool_call>"
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}


def test_a_reply(server):
    reply = server.chat()
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", body["id"])
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "85",
                "refusal": None,
                "reasoning_content": "I add.",
            },
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = len(server.engine.requests[0].prompt_ids)
    # 6 letters and the marker in reasoning, 2 line breaks, 2 digits, the stop token.
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens": 12,
        "completion_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": prompt + 12,
    }
    timings = body["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (0, prompt, 12)
    assert "draft_n" not in timings


@pytest.mark.parametrize(
    ("says", "fields", "message", "finish"),
    [
        ("plain", {"enable_thinking": False}, {"content": "plain"}, "stop"),
        ("", {"enable_thinking": False}, {"content": ""}, "stop"),
        ("never closed", {}, {"content": "", "reasoning_content": "never closed"}, "stop"),
        (
            "one two",
            {"enable_thinking": False, "max_tokens": 3},
            {"content": "one"},
            "length",
        ),
        (
            "one two",
            {"enable_thinking": False, "max_completion_tokens": 5, "max_tokens": 3},
            {"content": "one t"},
            "length",
        ),
        ("one", {"enable_thinking": False, "max_tokens": 0}, {"content": ""}, "length"),
        ("a b c", {"enable_thinking": False, "stop": " b"}, {"content": "a"}, "stop"),
        ("a b c", {"enable_thinking": False, "stop": ["x", "c"]}, {"content": "a b "}, "stop"),
        ("th ink", {"stop": [" "]}, {"content": "", "reasoning_content": "th"}, "stop"),
    ],
)
def test_text_and_finish_reason(make_server, says, fields, message, finish):
    choice = make_server(says).chat(**fields).json()["choices"][0]
    expected = {"role": "assistant", "refusal": None, **message}
    assert (choice["message"], choice["finish_reason"]) == (expected, finish)


def test_tool_calls(make_server):
    server = make_server(f"need it</think>\n\n{CALL}")
    choice = server.chat(tools=[LOOKUP]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert re.fullmatch(r"call_[0-9a-f]{16}", call.pop("id"))
    assert call == {
        "type": "function",
        "function": {"name": "lookup", "arguments": '{"q": "x"}'},
    }


def test_text_before_calls_stays(make_server):
    message = make_server(f"</think>Checking.\n{CALL}").chat(tools=[LOOKUP]).json()["choices"][0]
    assert message["message"]["content"] == "Checking."
    assert len(message["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [LOOKUP], "tool_choice": "none"},
        {
            "tools": [LOOKUP],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": []},
            },
        },
    ],
)
def test_without_callable_tools_markup_is_text(make_server, fields):
    server = make_server(f"</think>{CALL}")
    choice = server.chat(**fields).json()["choices"][0]
    assert choice["message"]["content"] == CALL
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_the_limit_wins_over_complete_calls(make_server):
    server = make_server(f"{CALL}  and more")
    limit = len(CALL.replace("<tool_call>", "T").replace("</tool_call>", "T")) + 1
    choice = server.chat(tools=[LOOKUP], enable_thinking=False, max_tokens=limit).json()
    assert choice["choices"][0]["finish_reason"] == "length"
    assert len(choice["choices"][0]["message"]["tool_calls"]) == 1


def test_a_call_cut_by_the_limit_is_text(make_server):
    server = make_server(CALL)
    choice = server.chat(tools=[LOOKUP], enable_thinking=False, max_tokens=9).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "<tool_call>\n<functi"[: len("<tool_call>") + 8]


def test_draft_counts_are_shown_only_where_something_was_drafted(make_server):
    drafting = Speculation(backend="mtp", drafted_tokens=24, accepted_tokens=10)
    timings = make_server(engine={"speculation": drafting}).chat().json()["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (24, 10)


def test_unicode_arrives_whole(make_server):
    body = make_server("</think>四十二 🙂").chat().json()
    assert body["choices"][0]["message"]["content"] == "四十二 🙂"


def test_stream_and_whole_reply_say_the_same(make_server):
    server = make_server(f"Think 🙂.</think>\n\nText é\n{CALL}\n", engine={"tokens_per_round": 3})
    whole = server.chat(tools=[LOOKUP]).json()
    chunks = server.chunks(tools=[LOOKUP], stream_options={"include_usage": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-2]]
    message = whole["choices"][0]["message"]
    assert "".join(d.get("content", "") for d in deltas) == message["content"]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message["reasoning_content"]
    (calls,) = [d["tool_calls"] for d in deltas if "tool_calls" in d]
    assert [call["function"] for call in calls] == [c["function"] for c in message["tool_calls"]]
    assert chunks[-2]["usage"] == whole["usage"]
