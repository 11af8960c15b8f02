import pytest

from ninfer_jax.errors import RequestError
from ninfer_jax.text.prompt import PromptOptions, build_prompt
from ninfer_jax.text.template import ChatTemplate

HELLO = {"role": "user", "content": "hi"}


def build(tokenizer, template, messages=(HELLO,), tools=None, **options):
    return build_prompt(tokenizer, template, list(messages), tools, PromptOptions(**options))


@pytest.mark.parametrize(
    ("options", "thinking_open", "start"),
    [
        ({}, True, "<|im_start|>user"),
        ({"enable_thinking": False}, False, "<|im_start|>user"),
        ({"reasoning_effort": "none"}, False, "<|im_start|>user"),
        ({"reasoning_effort": "none", "enable_thinking": False}, False, "<|im_start|>user"),
        ({"reasoning_effort": "minimal"}, True, "<|im_start|>system\nThink briefly."),
        ({"reasoning_effort": "max"}, True, "<|im_start|>system\nThink hard."),
        ({"reasoning_effort": "auto"}, True, "<|im_start|>user"),
    ],
)
def test_thinking(tokenizer, demo_template, options, thinking_open, start):
    prompt = build(tokenizer, demo_template, **options)
    assert prompt.thinking_open is thinking_open
    assert prompt.text.startswith(start)
    assert prompt.ids[0] == tokenizer.known.start_of_turn
    assert tokenizer.decode(prompt.ids) == prompt.text


@pytest.mark.parametrize(
    ("text", "thinking_open"),
    [
        ("<think>", True),
        ("<think> \n\n", True),
        ("<think>x", False),
        ("<think>\n</think>", False),
        ("x", False),
        ("{{ messages[0].content }}", False),
    ],
)
def test_prompt_ends_inside_thinking(tokenizer, text, thinking_open):
    quoted = {"role": "user", "content": "<think>"}
    assert build(tokenizer, ChatTemplate(text), [quoted]).thinking_open is thinking_open


def test_continuing_an_assistant_turn(tokenizer, demo_template):
    messages = [HELLO, {"role": "assistant", "content": "The answer <|im_end|> is"}]
    prompt = build(tokenizer, demo_template, messages, continue_final=True, enable_thinking=False)
    assert prompt.text.endswith("<think>\n\n</think>\n\nThe answer <|im_end|> is")
    assert tokenizer.decode(prompt.ids) == prompt.text
    assert not prompt.thinking_open
    assert prompt.ids.count(tokenizer.known.end_of_turn) == 1


@pytest.mark.parametrize(
    ("source", "messages", "message"),
    [
        (None, [HELLO], "only an assistant message"),
        (
            "{{ messages[1].content }}",
            [HELLO, {"role": "assistant", "content": "x"}],
            "does not end",
        ),
    ],
)
def test_what_cannot_be_continued(tokenizer, demo_template, source, messages, message):
    template = demo_template if source is None else ChatTemplate(source)
    with pytest.raises(RequestError, match=message):
        build(tokenizer, template, messages, continue_final=True)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort_not_supported"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "conflicting_template_option"),
        ({"template_options": {"messages": []}}, "chat_template_option_not_supported"),
        ({"template_options": {"range": 1}}, "chat_template_option_not_supported"),
    ],
)
def test_refused_options(tokenizer, demo_template, options, code):
    with pytest.raises(RequestError) as caught:
        build(tokenizer, demo_template, **options)
    assert caught.value.code == code


def test_further_options_reach_the_template_as_caller_text(tokenizer):
    template = ChatTemplate("{{ persona }}<|im_end|>")
    prompt = build(tokenizer, template, template_options={"persona": "<|im_end|>"})
    assert prompt.text == "<|im_end|><|im_end|>"
    assert prompt.ids.count(tokenizer.known.end_of_turn) == 1


def test_an_empty_prompt_is_refused(tokenizer):
    with pytest.raises(RequestError, match="empty prompt"):
        build(tokenizer, ChatTemplate("{{ nothing }}"))
