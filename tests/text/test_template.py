import datetime

import pytest

from ninfer_jax.errors import ConfigError, RequestError
from ninfer_jax.text.json_text import parse_json
from ninfer_jax.text.template import ChatTemplate, encode

HELLO = {"role": "user", "content": "hi"}


def call(name, arguments):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


# --- the demo's template: the behaviour of the family -----------------------------------------


@pytest.mark.parametrize(
    ("options", "prologue"),
    [
        ({}, "<|im_start|>assistant\n<think>\n"),
        ({"enable_thinking": True}, "<|im_start|>assistant\n<think>\n"),
        ({"enable_thinking": False}, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ({"add_generation_prompt": False}, ""),
        ({"reasoning_effort": "medium"}, "<|im_start|>assistant\n<think>\n"),
    ],
)
def test_generation_prompt(demo_template, options, prologue):
    rendered = demo_template.render([HELLO], **options)
    assert rendered.text == "<|im_start|>user\nhi<|im_end|>\n" + prologue


@pytest.mark.parametrize(
    ("messages", "tools", "options", "block"),
    [
        ([HELLO], [], {"reasoning_effort": "low"}, "Think briefly."),
        ([HELLO], [], {"reasoning_effort": "xhigh"}, "Think hard."),
        ([HELLO], [], {"reasoning_effort": "medium"}, None),
        ([HELLO], [], {"reasoning_effort": "low", "enable_thinking": False}, None),
        ([{"role": "system", "content": " be kind \n"}, HELLO], [], {}, "be kind"),
        ([{"role": "developer", "content": "be kind"}, HELLO], [], {}, "be kind"),
        (
            [{"role": "system", "content": "be kind"}, HELLO],
            [],
            {"reasoning_effort": "xhigh"},
            "Think hard.\n\nbe kind",
        ),
    ],
)
def test_system_block(demo_template, messages, tools, options, block):
    text = demo_template.render(messages, tools, **options).text
    start = "" if block is None else f"<|im_start|>system\n{block}<|im_end|>\n"
    assert text.startswith(start + "<|im_start|>user\nhi<|im_end|>\n")


def test_tools_stand_between_effort_and_system_text_with_keys_in_order(demo_template):
    tools = [
        tool(
            "b", description="é <b>", parameters={"type": "object", "properties": {"z": 1, "a": 2}}
        ),
        tool("a"),
    ]
    text = demo_template.render(
        [{"role": "system", "content": "be kind"}, HELLO], tools, reasoning_effort="low"
    ).text
    assert text.startswith(
        "<|im_start|>system\nThink briefly.\n\n# Tools\n"
        '{"type": "function", "function": {"name": "b", "description": "é <b>", '
        '"parameters": {"type": "object", "properties": {"z": 1, "a": 2}}}}\n'
        '{"type": "function", "function": {"name": "a"}}\n'
    )
    assert "\n</tool_call>\n\nbe kind<|im_end|>\n<|im_start|>user\nhi" in text


HISTORY = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "reasoning_content": " r1 ", "content": " a1 "},
    {"role": "user", "content": "two"},
    {"role": "assistant", "reasoning": "r2", "content": "", "tool_calls": [call("f", "{}")]},
    {"role": "tool", "content": "x"},
]


@pytest.mark.parametrize(
    ("preserve", "first"),
    [(True, "<think>\nr1\n</think>\n\na1"), (None, "<think>\nr1\n</think>\n\na1"), (False, "a1")],
)
def test_reasoning_is_kept_if_preserved_or_after_the_last_query(demo_template, preserve, first):
    text = demo_template.render(HISTORY, preserve_thinking=preserve).text
    assert f"<|im_start|>assistant\n{first}<|im_end|>\n" in text
    assert "<think>\nr2\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>" in text


def test_a_turn_without_reasoning_has_an_empty_think_block(demo_template):
    messages = [HELLO, {"role": "assistant", "content": "yes"}, HELLO]
    text = demo_template.render(messages, preserve_thinking=True).text
    assert "<|im_start|>assistant\n<think>\n\n</think>\n\nyes<|im_end|>\n" in text


def test_wrapped_tool_response_is_no_real_query(demo_template):
    wrapped = {"role": "user", "content": "\n<tool_response>\nx < y\n</tool_response> "}
    history = [*HISTORY[:4], wrapped]
    text = demo_template.render(history, preserve_thinking=False).text
    assert "<think>\nr2\n</think>" in text
    assert "<|im_start|>user\n<tool_response>\nx < y\n</tool_response><|im_end|>\n" in text
    with pytest.raises(RequestError, match="no user query"):
        demo_template.render([wrapped])
    half = {"role": "user", "content": "<tool_response>\nx"}
    assert "<|im_start|>user\n<tool_response>\nx<|im_end|>" in demo_template.render([half]).text


def test_tool_results_share_one_user_block(demo_template):
    messages = [
        HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call("f", "{}"), call("g", "{}")]},
        {"role": "tool", "content": " 1 "},
        {"role": "function", "name": "g", "content": "2"},
        {"role": "user", "content": "and?"},
    ]
    assert (
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n"
        "</tool_response><|im_end|>\n<|im_start|>user\nand?<|im_end|>\n"
    ) in demo_template.render(messages).text


def test_tool_calls_in_history(demo_template):
    arguments = '{"q": "two\\nlines", "n": 7.0, "deep": {"z": [1e2, true, null], "a": "é"}}'
    calls = [call("f", arguments), call("g", parse_json("{}")), {"name": "h", "arguments": None}]
    message = {"role": "assistant", "content": " Look. ", "tool_calls": calls}
    text = demo_template.render([HELLO, message]).text
    assert (
        "Look.\n\n<tool_call>\n<function=f>\n<parameter=q>\ntwo\nlines\n</parameter>\n"
        "<parameter=n>\n7.0\n</parameter>\n"
        '<parameter=deep>\n{"z": [1e2, true, null], "a": "é"}\n</parameter>\n'
        "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=h>\n</function>\n</tool_call><|im_end|>\n"
    ) in text


def test_system_turn_later_in_the_history_keeps_its_place(demo_template):
    messages = [HELLO, {"role": "developer", "content": " now French "}]
    assert demo_template.render(messages).text.startswith(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>system\nnow French<|im_end|>\n"
    )


def test_media_parts(demo_template):
    content = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "video", "video": "y"},
    ]
    assert (
        "ab<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>"
    ) in demo_template.render([{"role": "user", "content": content}]).text


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ([], {}, "no user query"),
        ([{"role": "system", "content": "x"}], {}, "no user query"),
        ([{"role": "tool", "content": "x"}], {}, "no user query"),
        ([HELLO, {"role": "critic", "content": "x"}], {}, "unexpected message role: critic"),
        ([HELLO], {"reasoning_effort": "high"}, "reasoning_effort must be"),
        ("hi", {}, "must be a list"),
        ([["user", "hi"]], {}, "with a role"),
        ([{"role": "user", "content": 3}], {}, "a string or a list"),
        ([{"role": "user", "content": ["x"]}], {}, "no object"),
        ([{"role": "user", "content": [{"type": "text"}]}], {}, "without text"),
        ([{"role": "user", "content": [{"type": "audio"}]}], {}, "text, image or video"),
        (
            [HELLO, {"role": "assistant", "content": "", "tool_calls": [call("f", "{")]}],
            {},
            "arguments of 'f' are not JSON",
        ),
        (
            [HELLO, {"role": "assistant", "content": "", "tool_calls": [call("f", "[1]")]}],
            {},
            "must be a JSON object",
        ),
        ([HELLO, {"role": "assistant", "tool_calls": [{}]}], {}, "must name its function"),
        (
            [HELLO, {"role": "assistant", "reasoning": "a", "reasoning_content": "b"}],
            {},
            "differ",
        ),
        ([HELLO], {"namespace": 1}, "'namespace' is a function"),
    ],
)
def test_refused_messages(demo_template, messages, options, message):
    with pytest.raises(RequestError, match=message):
        demo_template.render(messages, **options)


def test_messages_nested_too_deeply(demo_template):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    messages = [HELLO, {"role": "assistant", "tool_calls": [call("f", {"x": deep})]}]
    with pytest.raises(RequestError, match="deep"):
        demo_template.render(messages)


# --- any template ------------------------------------------------------------------------------


def render(source, messages=(HELLO,), **options):
    return ChatTemplate(source).render(list(messages), **options).text


def test_template_environment():
    now = datetime.datetime(2030, 1, 2)
    template = ChatTemplate(
        "{% for m in messages %}\n{% if loop.index0 == 1 %}{% break %}{% endif %}\n"
        "   {% set x = 1 %}\n{{ m.content }}|{% endfor %}"
        "{{ strftime_now('%Y-%m-%d') }} {{ {'b': '<é>', 'a': [1, none]} | tojson }}"
        "{{ {'a': 1} | tojson(indent=1) }}{{ extra }}{{ missing }}",
        now=lambda: now,
    )
    assert template.render([HELLO, HELLO], extra="e").text == (
        'hi|2030-01-02 {"b": "<é>", "a": [1, null]}{\n "a": 1\n}e'
    )


def test_options_that_are_none_are_not_passed():
    source = "{{ enable_thinking is defined }} {{ reasoning_effort is defined }}"
    assert render(source) == "False False"
    assert render(source, enable_thinking=False, reasoning_effort="low") == "True True"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "characters"),
        ("   \n", "characters"),
        ("x" * (1 << 20) + "y", "characters"),
        ("a\n{% if %}", "line 2"),
        ("{{ 'a' | nothing }}", "nothing"),
    ],
)
def test_templates_that_do_not_compile(source, message):
    with pytest.raises(ConfigError, match=message):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 10000000 }}",
        "{{ 9 ** 9 }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises((ConfigError, RequestError)):
        render(source)


@pytest.mark.parametrize(
    "source", ["{{ messages[0].a.b }}", "{{ messages + 1 }}", "{{ 1 / 0 }}", "{{ messages[0]() }}"]
)
def test_faults_while_rendering(source):
    with pytest.raises(RequestError, match="cannot render"):
        render(source)


def test_output_is_bounded():
    template = ChatTemplate(
        "{% for i in range(100) %}{{ 'x' * 100 }}{% endfor %}", largest_prompt=999
    )
    with pytest.raises(RequestError, match="more than 999"):
        template.render([HELLO])


SPLITTING = """
{%- for m in messages %}
{%- set content = m.content %}
{%- set reasoning = '' %}
{%- if m.reasoning_content is string %}
{%- set reasoning = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '[' + m.role + '|' + reasoning + '|' + content + ']' }}
{%- endfor %}"""


@pytest.mark.parametrize(
    ("message", "rendered"),
    [
        ({"content": "<think>\nr\n</think>\n\na"}, "[assistant|r|a]"),
        ({"content": "r</think>a"}, "[assistant|r|a]"),
        ({"content": [{"type": "text", "text": "r</thi"}, {"type": "text", "text": "nk>a"}]},
         "[assistant|r|a]"),
        ({"content": "r</think>a", "reasoning_content": ""}, "[assistant||r</think>a]"),
        ({"content": "plain"}, "[assistant||plain]"),
    ],
)  # fmt: skip
def test_inline_reasoning_is_split_where_the_template_does(message, rendered):
    assert render(SPLITTING, [{"role": "assistant", **message}]) == rendered
    assert "</think>a" in render(
        "{{ messages[0].content }}", [{"role": "assistant", "content": "r</think>a"}]
    )


@pytest.mark.parametrize(
    ("expression", "splits"),
    [
        ("c.split('</think>')[0] + '|' + c.split('</think>')[-1]", True),
        ("(c.split(end)|first) + '</think>' + (c.split(end)|last)", True),
        ("c", False),
        ("c|trim", False),
        ("messages[0].content", False),
        ("raise_exception('no')", False),
    ],
)
def test_whether_a_template_splits_is_found_out_by_asking_it(expression, splits):
    source = (
        "{% set end = '\\n</think>' %}{% set c = messages[-1].content %}{{ " + expression + " }}"
    )
    assert ChatTemplate(source).splits_inline_reasoning is splits


@pytest.mark.parametrize(("mention", "role"), [("", "system"), ("{# developer #}", "developer")])
def test_a_template_without_developers_sees_a_system_turn(mention, role):
    assert render("{{ messages[0].role }}" + mention, [{"role": "developer"}]) == role


def test_rendering_does_not_change_the_messages(demo_template):
    message = {
        "role": "assistant",
        "reasoning": "r",
        "content": "c",
        "tool_calls": [call("f", "{}")],
    }
    before = repr(message)
    demo_template.render([HELLO, message])
    assert repr(message) == before


def test_encode_gives_the_ids_of_plain_rendering(demo_template, tokenizer, package_tokenizer):
    rendered = demo_template.render(
        [{"role": "system", "content": "a < b, <b>bold</b>"}, *HISTORY, HELLO],
        [tool("f", description="if x<1 </x>")],
    )
    expected = package_tokenizer.encode(rendered.text, add_special_tokens=False).ids
    assert encode(rendered, tokenizer) == expected
