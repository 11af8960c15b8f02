import pytest

from ninfer_jax.errors import RequestError
from ninfer_jax.text.thinking import (
    Effort,
    ThinkingMode,
    agreed_switch,
    resolve_effort,
    resolve_thinking,
)


@pytest.mark.parametrize(
    ("word", "effort"),
    [
        (None, Effort()),
        ("default", Effort()),
        ("auto", Effort()),
        ("none", Effort(thinking=False)),
        ("minimal", Effort("low")),
        ("low", Effort("low")),
        ("medium", Effort("medium")),
        ("high", Effort("xhigh")),
        ("xhigh", Effort("xhigh")),
        ("max", Effort("xhigh")),
    ],
)
def test_effort_words(word, effort):
    assert resolve_effort(word) == effort


@pytest.mark.parametrize("word", ["", "HIGH", "extreme", 3, True])
def test_unknown_effort(word):
    with pytest.raises(RequestError) as caught:
        resolve_effort(word)
    assert caught.value.code == "reasoning_effort_not_supported"
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("request_switch", "effort", "server", "template", "enabled", "level"),
    [
        (None, None, None, True, True, None),
        (None, None, None, False, False, None),
        (None, None, False, True, False, None),
        (None, None, True, False, True, None),
        (True, None, False, True, True, None),
        (False, None, True, True, False, None),
        (None, "none", True, True, False, None),
        (False, "none", None, True, False, None),
        (None, "high", False, True, False, "xhigh"),
        (False, "low", None, True, False, "low"),
        (True, "minimal", False, True, True, "low"),
    ],
)
def test_precedence(request_switch, effort, server, template, enabled, level):
    mode = resolve_thinking(
        request={"enable_thinking": request_switch}, effort=effort, server=server, template=template
    )
    assert mode == ThinkingMode(enabled, level)


@pytest.mark.parametrize(
    ("switches", "effort"),
    [
        ({"enable_thinking": True}, "none"),
        ({"enable_thinking": True, "chat_template_kwargs.enable_thinking": False}, None),
        ({"thinking.type": False, "enable_thinking": True}, None),
    ],
)
def test_contradictions(switches, effort):
    with pytest.raises(RequestError) as caught:
        resolve_thinking(request=switches, effort=effort)
    assert caught.value.code == "conflicting_template_option"
    assert caught.value.param == "enable_thinking"


def test_agreement():
    assert agreed_switch({}) is None
    assert agreed_switch({"a": None, "b": False, "c": False}) is False
