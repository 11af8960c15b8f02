import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_jax.text.tool_calls import FallbackReason, ToolCall, ToolCallHolder, parse_tool_calls
from ninfer_jax.text.tool_set import ToolSet

TOOLS = ToolSet(
    {
        "f": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}},
        "g": {},
    }
)
NONE = FallbackReason.NONE
MALFORMED = FallbackReason.MALFORMED_STRUCTURE


def block(name="f", **parameters):
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def read(text, tools=TOOLS):
    parsed = parse_tool_calls(text, tools)
    return parsed.content, [(c.name, json.loads(c.arguments)) for c in parsed.calls], parsed.parse


WELL_FORMED = {
    "one": (block(s="x"), "", [("f", {"s": "x"})]),
    "no parameters": (block("g"), "", [("g", {})]),
    "text before": ("Look. \n\n" + block(s="x"), "Look.", [("f", {"s": "x"})]),
    "two": (block(s="x") + "\n" + block("g") + "\n", "", [("f", {"s": "x"}), ("g", {})]),
    "adjacent": (block("g") + block("g"), "", [("g", {}), ("g", {})]),
    "compact": (
        "<tool_call><function=f><parameter=s>a</parameter><parameter=n>1</parameter>"
        "</function></tool_call>",
        "",
        [("f", {"s": "a", "n": 1})],
    ),
    "CRLF": (block(s="x", n="7").replace("\n", "\r\n"), "", [("f", {"s": "x", "n": 7})]),
    "one line break is stripped at each end": (
        block(s="\n  x \n\n"),
        "",
        [("f", {"s": "\n  x \n\n"})],
    ),
    "empty string": ("<tool_call><function=f><parameter=s>\n</parameter></function></tool_call>",
                     "", [("f", {"s": ""})]),
    "undeclared parameter": (block(other="7"), "", [("f", {"other": 7})]),
    "order is kept": (block(n="1", s="x", a="2"), "", [("f", {"n": 1, "s": "x", "a": 2})]),
    "identical duplicates merge": (
        "<tool_call>\n<function=f>\n" + "<parameter=s>\nx\n</parameter>\n" * 2
        + "</function>\n</tool_call>",
        "",
        [("f", {"s": "x"})],
    ),
    "closing line break forgotten": (
        "<tool_call>\n<function=f>\n<parameter=s>\nfoo</parameter>\n<parameter=n>\n1\n"
        "</parameter>\n</function>\n</tool_call>",
        "",
        [("f", {"s": "foo", "n": 1})],
    ),
    "quoted marker before the call": (
        "I use `<tool_call>` now:\n" + block("g"),
        "I use `<tool_call>` now:",
        [("g", {})],
    ),
    "text after": (block("g") + "\n\nDone.", "\n\nDone.", [("g", {})]),
    "text between": ("a " + block("g") + " b " + block("g"), "a b", [("g", {}), ("g", {})]),
}  # fmt: skip

VALUES = {
    "balanced pair": "see <parameter=x>y</parameter> there",
    "balanced pair on lines": "see\n<parameter=x>\ny\n</parameter>\nthere",
    "lone closer": "write </parameter> to close",
    "lone closer with structure": "end with </parameter></function></tool_call> please",
    "closers alone": "</parameter>\n</parameter>\n</parameter>",
    "unbalanced opener": "write <parameter=x> to open",
    "function markers": "<function=a> and </function> and <tool_call></tool_call>",
    "a whole call": block("f", s="inner", n="3"),
    "a whole call in text": "Example:\n" + block("g") + "\nand " + block("f", s="y") + "\nend",
    "nested twice": block("f", s=block("f", s="deep")),
    "opener and a whole call": "use <parameter=q> then\n" + block("f", s="y"),
    "unfinished names": "<parameter= <parameter=a <function= <tool_call",
}


@pytest.mark.parametrize("case", WELL_FORMED)
def test_well_formed(case):
    text, content, calls = WELL_FORMED[case]
    assert read(text)[:2] == (content, calls)
    parse = read(text)[2]
    assert parse.marker_seen and parse.structured_call_count == len(calls)
    assert parse.fallback_reason is NONE and parse.rejected_block_count == 0
    assert parse.trailing_content_count == (case == "text after")


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.parametrize("around", ["alone", "first", "last", "followed by a call"])
def test_delimiters_inside_a_value(case, around):
    value = VALUES[case]
    parameters = {
        "first": {"s": value, "n": "1"},
        "last": {"n": "1", "s": value},
    }.get(around, {"s": value})
    text = block("f", **parameters)
    expected = [("f", {**parameters, **({"n": 1} if "n" in parameters else {})})]
    if around == "followed by a call":
        text += "\n" + block("f", s="z", n="2")
        expected.append(("f", {"s": "z", "n": 2}))
    assert read(text)[:2] == ("", expected)


BAD = {
    "no function end": ("<tool_call>\n<function=f>\n</tool_call>", MALFORMED),
    "no parameter end": ("<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>",
                         MALFORMED),
    "text in the function": ("<tool_call>\n<function=f>\nhello\n</function>\n</tool_call>",
                             MALFORMED),
    "no key": (block("f", s="x").replace("=s>", "=>"), MALFORMED),
    "two functions": (
        "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>",
        MALFORMED,
    ),
    "cut in a value": ("<tool_call>\n<function=f>\n<parameter=s>\nx", MALFORMED),
    "cut before the end": (block("f", s="x")[:-1], MALFORMED),
    "cut in the function": ("<tool_call>\n<func", MALFORMED),
    "cut after the marker": ("<tool_call>", MALFORMED),
    "cut inside a quoted call": (
        "<tool_call>\n<function=f>\n<parameter=s>\nSee:\n" + block("f", s="x") + "\nand",
        MALFORMED,
    ),
    "invalid name": (block("f f", s="x"), FallbackReason.INVALID_TOOL_NAME),
    "empty name": (block(""), FallbackReason.INVALID_TOOL_NAME),
    "long name": (block("a" * 65), FallbackReason.INVALID_TOOL_NAME),
    "undeclared": (block("h", s="x"), FallbackReason.UNDECLARED_TOOL),
    "different duplicates": (
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=s>\ny\n"
        "</parameter>\n</function>\n</tool_call>",
        FallbackReason.DUPLICATE_PARAMETER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_block_is_given_back_verbatim(case):
    bad, reason = BAD[case]
    text = f"a \n{bad}" + ("" if case.startswith("cut") else " \n")
    content, calls, parse = read(text)
    assert (content, calls) == (text, [])
    assert (parse.fallback_reason, parse.structured_call_count) == (reason, 0)


@pytest.mark.parametrize("case", [name for name in BAD if not name.startswith(("cut", "no param"))])
def test_good_blocks_beside_a_bad_one_are_kept(case):
    bad, _ = BAD[case]
    good = block("f", s="x")
    content, calls, parse = read(f"{bad}\n{good}\n{bad}\n{good}")
    assert calls == [("f", {"s": "x"})] * 2
    assert content == bad + "\n" + bad
    assert parse.fallback_reason is NONE
    assert parse.rejected_block_count == 2


def test_the_first_failure_is_reported():
    text = block("h") + block("f f")
    assert read(text)[2].fallback_reason is FallbackReason.UNDECLARED_TOOL


def test_markers_inside_values_of_a_rejected_block_create_no_call():
    inner = block("f", s="evil")
    for outer in (block("h", s=inner), f"<tool_call>\n<function=f>\nx\n<parameter=s>\n{inner}\n"):
        assert read(outer)[:2] == (outer, [])
    rejected = block("h", s=inner) + "\n" + block("g")
    assert read(rejected)[:2] == (block("h", s=inner), [("g", {})])


def test_an_unclosed_block_ends_before_the_next_one():
    unclosed = "<tool_call>\n<function=f>\n</function>\n"
    assert read(unclosed + block("g"))[:2] == (unclosed.rstrip(), [("g", {})])


def test_a_marker_that_is_only_mentioned():
    text = "The marker `<tool_call>` opens a call, `</tool_call>` ends it."
    content, calls, parse = read(text)
    assert (content, calls) == (text, [])
    assert (parse.marker_seen, parse.fallback_reason) == (True, NONE)


def test_counts():
    text = block("f", n="") + block("f", n="seven") + block("f", n="7.5", s="")
    _, calls, parse = read(text)
    assert calls == [("f", {}), ("f", {"n": "seven"}), ("f", {"n": 7.5, "s": ""})]
    assert (parse.empty_arguments_omitted, parse.schema_mismatch_arguments) == (1, 2)


def test_arguments_are_json_text_with_spelling_kept():
    parsed = parse_tool_calls(block("f", n="7.0", s='é"\n<'), TOOLS)
    assert parsed.calls == (ToolCall("f", '{"n": 7.0, "s": "é\\"\\n<"}'),)


@pytest.mark.parametrize("longest", [64, 128])
def test_longest_name(longest):
    tools = ToolSet({"a" * 128: {}}, longest_name=longest)
    assert len(read(block("a" * 128), tools)[1]) == (longest == 128)


N = 1000
HOSTILE = {
    "closers in a line": block("f", s="</parameter> " * N),
    "closers on lines": block("f", s="</parameter>\n" * N),
    "closers with structure": block("f", s="</parameter></function></tool_call>\n" * N),
    "openers": block("f", s="<parameter=x> " * N),
    "unfinished openers": block("f", s="<parameter=" * N),
    "pairs": block("f", s="<parameter=x></parameter>" * N),
    "parameters with an opener each": block("f", **{f"p{n}": "<parameter=x>" for n in range(N)}),
    "calls": block("f", s="x") * N,
    "unclosed calls": "<tool_call><function=f>" * N,
    "unclosed parameters": "<tool_call><function=f><parameter=s>" * N,
    "mentioned markers": "<tool_call> " * N,
    "white space": block("f", s="</parameter>" + " " * 100 * N),
    "quoted calls": block("f", s=block("f", s="x") * N),
    "nested brackets": block("f", n="[" * N * 10),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_time_is_linear(case):
    text = HOSTILE[case]
    fastest = float("inf")
    for _ in range(3):
        start = time.thread_time()
        parsed = parse_tool_calls(text, TOOLS)
        fastest = min(fastest, time.thread_time() - start)
    assert fastest < (0.05 if case.startswith("closers") else 0.5)
    if case in ("closers in a line", "closers on lines", "closers with structure", "pairs"):
        assert len(parsed.calls) == 1


# --- held back while streaming -----------------------------------------------------------------


def stream(pieces):
    holder = ToolCallHolder(TOOLS)
    shown = "".join(holder.push(piece) for piece in pieces)
    parsed = holder.finish()
    return shown, shown + parsed.content, parsed.calls, parsed.parse


STREAMED = [
    "plain \n text",
    "trailing space \n ",
    "a <tool_cal> <tool_call",
    "a \n" + block("f", s="x<y"),
    "`<tool_call>` and " + block("g") + " \n",
    "a " + block("h") + " b",
]


@pytest.mark.parametrize("text", STREAMED)
def test_every_cut_of_a_stream(text):
    whole = parse_tool_calls(text, TOOLS)
    limit = len(text) + 1
    for cuts in itertools.chain(
        ((a,) for a in range(limit)), itertools.combinations(range(0, limit, 3), 2)
    ):
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        assert stream(pieces)[1:] == (whole.content, whole.calls, whole.parse)
    assert stream(text)[1:] == (whole.content, whole.calls, whole.parse)


def test_text_before_the_marker_streams_and_the_rest_is_held():
    holder = ToolCallHolder(TOOLS)
    pushed = ["Hi", " ", "there", ". <", "b>", "\n", "\n<tool", "_call>", "x", "y"]
    shown = ["Hi", "", " there", ".", " <b>", "", "", "", "", ""]
    assert [holder.push(piece) for piece in pushed] == shown
    assert holder.finish().content == "\n\n<tool_call>xy"


def test_a_flood_of_white_space_is_linear():
    holder = ToolCallHolder(TOOLS)
    start = time.thread_time()
    for _ in range(50_000):
        assert holder.push("\n\n") == ""
    assert len(holder.finish().content) == 100_000
    assert time.thread_time() - start < 2


ELEMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<function=f>", "<function=h>", "</function>",
        "<parameter=s>", "<parameter=n>", "</parameter>", "\n", " ", "x", "<tool_", "7",
        block("f", s="ok"), block("g"),
    ]
)  # fmt: skip


@given(st.lists(ELEMENTS, max_size=25))
def test_nothing_is_lost_whatever_the_model_writes(elements):
    text = "".join(elements)
    parsed = parse_tool_calls(text, TOOLS)
    assert parsed.parse.structured_call_count == len(parsed.calls)
    if not parsed.calls:
        assert parsed.content == text
    assert stream(elements)[1:] == (parsed.content, parsed.calls, parsed.parse)
    for call in parsed.calls:
        assert call.name in TOOLS
        json.loads(call.arguments)
