import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_jax.text.output import OutputDecoder
from ninfer_jax.text.tool_set import ToolSet
from ninfer_jax.text.verdict import TokenVerdict

TOOLS = ToolSet({"f": {"properties": {"s": {"type": "string"}}}})
CALL = "<tool_call>\n<function=f>\n<parameter=s>\nv\n</parameter>\n</function>\n</tool_call>"


class PiecesTokenizer:
    """Token n is the n-th piece of a byte string."""

    def __init__(self, pieces):
        self.pieces = pieces

    def token_bytes(self, token_id, *, hide_special=False):
        return self.pieces[token_id]


def run(pieces, *, take_each=False, **options):
    """(reasoning, content, calls, stop match, tokens used, reasoning tokens)."""
    decoder = OutputDecoder(PiecesTokenizer(pieces), **options)
    reasoning, content = "", ""
    used = 0
    for token_id in range(len(pieces)):
        verdict = decoder.push(token_id)
        used += 1
        if take_each:
            shown = decoder.take()
            reasoning, content = reasoning + shown[0], content + shown[1]
        if verdict is TokenVerdict.STOP_STRING:
            break
    rest = decoder.finish()
    assert decoder.finish() == ("", "")
    assert decoder.reasoning_tokens + decoder.content_tokens == used
    calls = [(call.name, json.loads(call.arguments)) for call in decoder.tool_calls]
    shown = (reasoning + rest[0], content + rest[1])
    return (*shown, calls, decoder.stop_match), used, decoder.reasoning_tokens


CASES = {
    "plain": ("answer", {"thinking_open": False}, ("", "answer", [], None)),
    "stray close": ("a</think>b", {"thinking_open": False}, ("", "a</think>b", [], None)),
    "think": ("why</think>\n\nbecause é", {"thinking_open": True}, ("why", "because é", [], None)),
    "only reasoning": ("why </thi", {"thinking_open": True}, ("why </thi", "", [], None)),
    "half a character in reasoning": (
        b"why\xe4\xb8",
        {"thinking_open": True},
        ("why�", "", [], None),
    ),
    "half a character in a marker": (
        b"x</think>y<tool_\xf0\x9f",
        {"thinking_open": True, "tools": TOOLS},
        ("x", "y<tool_�", [], None),
    ),
    "stop in reasoning": (
        "a STOP b</think>c",
        {"thinking_open": True, "stop_strings": ["STOP"]},
        ("a ", "", [], "STOP"),
    ),
    "stop in the answer": (
        "a</think>\n\nb é STOP c",
        {"thinking_open": True, "stop_strings": ["x", "STOP"]},
        ("a", "b é ", [], "STOP"),
    ),
    "stop does not span channels": (
        "ST</think>OP STO",
        {"thinking_open": True, "stop_strings": ["STOP"]},
        ("ST", "OP STO", [], None),
    ),
    "white space after the marker is no stop": (
        "a</think>\n\nb\n\nc",
        {"thinking_open": True, "stop_strings": ["\n\n"]},
        ("a", "b", [], "\n\n"),
    ),
    "the marker is no stop": (
        "a</think>b",
        {"thinking_open": True, "stop_strings": ["</", "</think>"]},
        ("a", "b", [], None),
    ),
    "stop that is a character of a marker": (
        "a < b</think>c",
        {"thinking_open": True, "stop_strings": ["<"]},
        ("a ", "", [], "<"),
    ),
    "stop completed by the end": (
        "a</think>b <",
        {"thinking_open": True, "stop_strings": ["<"]},
        ("a", "b ", [], "<"),
    ),
    "separate reasoning stops": (
        "a STOP b END c",
        {"thinking_open": True, "stop_strings": ["STOP"], "reasoning_stop_strings": ["END"]},
        ("a STOP b ", "", [], "END"),
    ),
    "call": (
        "hm</think>\n\nLook. \n" + CALL,
        {"thinking_open": True, "tools": TOOLS},
        ("hm", "Look.", [("f", {"s": "v"})], None),
    ),
    "call without tools": ("x " + CALL, {"thinking_open": False}, ("", "x " + CALL, [], None)),
    "call in reasoning": (
        CALL + "</think>x",
        {"thinking_open": True, "tools": TOOLS},
        (CALL, "x", [], None),
    ),
    "cut call": (
        "x " + CALL[:-3],
        {"thinking_open": False, "tools": TOOLS},
        ("", "x " + CALL[:-3], [], None),
    ),
    "stop inside a call": (
        CALL + " " + CALL,
        {"thinking_open": False, "tools": TOOLS, "stop_strings": ["> <tool"]},
        ("", CALL[:-1], [], "> <tool"),
    ),
    "stop after a call": (
        CALL + "\nOBS: 1",
        {"thinking_open": False, "tools": TOOLS, "stop_strings": ["OBS:"]},
        ("", "", [("f", {"s": "v"})], "OBS:"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_cut(case):
    stream, options, expected = CASES[case]
    data = stream if isinstance(stream, bytes) else stream.encode()
    limit = len(data) + 1
    pairs = itertools.combinations(range(limit), 2) if limit < 50 else ()
    for cuts in itertools.chain(((a,) for a in range(limit)), pairs):
        pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
        assert run(pieces, **options)[0] == expected, pieces
        assert run(pieces, take_each=True, **options)[0] == expected, pieces
    singles = [bytes([byte]) for byte in data]
    assert run(singles, take_each=True, **options)[0] == expected


ELEMENTS = st.sampled_from(
    ["</think>", "</th", "<", ">", "\n", " ", "a", "é", "😀", "STOP", "ST", "<tool_call>", CALL]
)


@settings(max_examples=200)
@given(st.lists(ELEMENTS, max_size=12), st.data())
def test_random_cuts(elements, data):
    stream = "".join(elements).encode()
    options = {"thinking_open": True, "stop_strings": ["STOP"], "tools": TOOLS}
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    assert run(pieces, take_each=True, **options)[0] == run([stream], **options)[0]


@pytest.mark.parametrize(
    ("tokens", "stops", "used"),
    [
        ("a|b ST|OP| c", ["STOP"], 3),
        ("a|b STOP c|d", ["STOP"], 2),
        ("a</think>b|x|STOP|d", ["STOP"], 3),
        ("a|ab|ab|c", ["bab"], 3),
    ],
)
def test_the_token_that_completes_a_stop_string_is_the_last(tokens, stops, used):
    pieces = [piece.encode() for piece in tokens.split("|")]
    assert run(pieces, thinking_open=True, stop_strings=stops)[1] == used


def test_tokens_after_a_stop_change_nothing():
    decoder = OutputDecoder(
        PiecesTokenizer([b"a STOP", b"b"]), thinking_open=False, stop_strings=["STOP"]
    )
    assert decoder.push(0) is TokenVerdict.STOP_STRING
    assert decoder.push(1) is TokenVerdict.STOP_STRING
    assert decoder.finish() == ("", "a ")
    assert decoder.content_tokens == 1


@pytest.mark.parametrize(
    ("tokens", "thinking", "reasoning"),
    [
        ("a|b|</think>|c", True, 3),
        ("a|b|</thi|nk>c|d", True, 4),
        ("a|b", True, 2),
        ("a|</think>|b", False, 0),
    ],
)
def test_reasoning_tokens(tokens, thinking, reasoning):
    pieces = [piece.encode() for piece in tokens.split("|")]
    assert run(pieces, thinking_open=thinking)[2] == reasoning


def test_text_streams_as_soon_as_it_is_safe():
    pieces = [b"th", b"ink \xc3", b"\xa9 </", b"think>", b"\n\n", b"ans", b"wer ST", b"ART"]
    decoder = OutputDecoder(PiecesTokenizer(pieces), thinking_open=True, stop_strings=["STOP"])
    shown = []
    for token_id in range(len(pieces)):
        decoder.push(token_id)
        shown.append(decoder.take())
    assert shown == [
        ("th", ""), ("ink ", ""), ("é ", ""), ("", ""), ("", ""), ("", "ans"), ("", "wer "),
        ("", "START"),
    ]  # fmt: skip


def test_with_a_real_tokenizer(tokenizer):
    text = "why</think>\n\nLook 😀\n" + CALL
    decoder = OutputDecoder(tokenizer, thinking_open=True, tools=TOOLS)
    for token_id in tokenizer.encode(text + "<|im_start|>", allow_special=True):
        decoder.push(token_id)
    assert decoder.finish() == ("why", "Look 😀")
    assert [call.name for call in decoder.tool_calls] == ["f"]
    assert decoder.tool_parse.structured_call_count == 1
