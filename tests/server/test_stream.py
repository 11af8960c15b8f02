"""Streams: order of chunks, progress, timings, keep-alive, errors after the start."""

from __future__ import annotations

import threading

import httpx
import pytest

CALL = "<tool_call>\n<function=lookup>\n<parameter=q>\nx\n</parameter>\n</function>\n</tool_call>"
LOOKUP = {"type": "function", "function": {"name": "lookup"}}


def shape(event) -> str:
    """One word for what a chunk carries."""
    if event == "[DONE]":
        return "done"
    if "error" in event:
        return "error"
    if not event["choices"]:
        return "usage"
    choice = event["choices"][0]
    if choice["finish_reason"]:
        return "finish"
    if "prompt_progress" in event:
        return "progress"
    (name,) = set(choice["delta"]) - {"role"} or {"role"}
    return "role" if "role" in choice["delta"] else name


def shapes(events) -> list[str]:
    """The shapes of a stream, repetitions merged."""
    found = [shape(event) for event in events]
    return [name for i, name in enumerate(found) if i == 0 or found[i - 1] != name]


def test_order_of_everything(make_server):
    server = make_server(f"I look.</think>\n\nChecking.\n{CALL}", engine={"prefill_chunk": 8})
    events = server.chunks(
        tools=[LOOKUP], return_progress=True, stream_options={"include_usage": True}
    )
    assert shapes(events) == [
        "role",
        "progress",
        "reasoning_content",
        "content",
        "tool_calls",
        "finish",
        "usage",
        "done",
    ]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({(e["id"], e["created"], e["object"]) for e in events[:-1]}) == 1
    assert events[0]["object"] == "chat.completion.chunk"
    assert [e["usage"] for e in events[:-2]] == [None] * (len(events) - 2)
    assert "timings" in events[-2] and not any("timings" in e for e in events[:-2])
    (calls,) = [e for e in events if shape(e) == "tool_calls"]
    (call,) = calls["choices"][0]["delta"]["tool_calls"]
    assert (call["index"], call["type"]) == (0, "function")
    assert call["function"] == {"name": "lookup", "arguments": '{"q": "x"}'}
    assert events[-3]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "tool_calls",
    }


def test_without_usage_timings_ride_on_the_finish_chunk(server):
    events = server.chunks()
    assert shapes(events) == ["role", "reasoning_content", "content", "finish", "done"]
    assert "timings" in events[-2]
    assert not any("usage" in event for event in events[:-1])


def test_stream_headers(server):
    reply = server.chat(stream=True)
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["x-request-id"].startswith("req_")


def test_progress_begins_at_the_cache_never_falls_and_ends_at_the_total(make_server):
    server = make_server(engine={"prefill_chunk": 8})
    events = server.chunks(return_progress=True)
    progress = [e["prompt_progress"] for e in events if shape(e) == "progress"]
    total = len(server.engine.requests[0].prompt_ids)
    processed = [p["processed"] for p in progress]
    assert processed[0] == progress[0]["cache"] == 0
    assert processed == sorted(processed) and processed[-1] == total
    assert {p["total"] for p in progress} == {total}
    times = [p["time_ms"] for p in progress]
    assert times == sorted(times)


def test_timings_per_token(make_server):
    events = make_server(engine={"tokens_per_round": 2}).chunks(timings_per_token=True)
    visible = [e for e in events if shape(e) in ("reasoning_content", "content")]
    counts = [event["timings"]["predicted_n"] for event in visible]
    assert counts == sorted(counts) and counts[0] >= 1
    assert events[-2]["timings"]["predicted_n"] == 12


def test_a_chunk_is_not_a_token(make_server):
    server = make_server("abcdefgh</think>xyz", engine={"tokens_per_round": 4})
    events = server.chunks(stream_options={"include_usage": True})
    deltas = [e for e in events if shape(e) in ("reasoning_content", "content")]
    assert len(deltas) < events[-2]["usage"]["completion_tokens"] - 1


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False}, None])
def test_an_error_after_the_start_is_one_event_and_the_end(make_server, options):
    """Neither a finish chunk nor `[DONE]` follows, nor a silent end."""
    server = make_server("some text that never ends")
    server.engine.hold()
    failing = threading.Thread(target=lambda: (server.engine.wait_until(_running), _fail(server)))
    failing.start()
    events = server.chunks(stream_options=options)
    failing.join()
    assert shapes(events) == ["role", "error"]
    assert events[-1] == {
        "error": {
            "message": "the engine has failed",
            "type": "server_error",
            "param": None,
            "code": "service_unavailable",
        }
    }


def _running(counters) -> bool:
    return counters.running == 1


def _fail(server) -> None:
    server.engine.fail()


def test_a_queued_stream_past_its_deadline_ends_in_an_error(make_server, listen, read_events):
    server = make_server(pending_timeout_ms=100)
    url = listen(server)
    server.engine.hold()
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as first:
        server.engine.wait_until(_running)
        second = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)
        assert second.status_code == 200
        events = read_events(second.text)
        assert shapes(events) == ["role", "error"]
        assert events[-1]["error"]["code"] == "request_queue_timeout"
        server.engine.resume()
        assert shapes(read_events(first.read().decode())) == [
            "role",
            "reasoning_content",
            "content",
            "finish",
            "done",
        ]


def test_silence_is_filled_with_comments(make_server, listen, read_events):
    server = make_server(keep_alive_seconds=0.01)
    url = listen(server)
    server.engine.hold()
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as reply:
        lines = []
        for line in reply.iter_lines():
            lines.append(line)
            if lines.count(": keep-alive") == 3:
                server.engine.resume()
    assert lines.count(": keep-alive") >= 3
    events = read_events("\n".join(lines) + "\n")
    assert shapes(events)[-1] == "done"
