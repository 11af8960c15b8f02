import itertools

import pytest

from ninfer_jax.text.channels import ChannelSplitter

CASES = [
    (True, "why</think>\n\nanswer </think> x", "why", "answer </think> x"),
    (True, "why", "why", ""),
    (True, "why</thin", "why</thin", ""),
    (True, "a</thi</think> \t\r\n\x0b\x0c b", "a</thi", "b"),
    (True, "</think>", "", ""),
    (True, "</think>   ", "", ""),
    (True, "a<</think>\u00a0b", "a<", "\u00a0b"),
    (False, " \nanswer</think> b", "", " \nanswer</think> b"),
]


@pytest.mark.parametrize(("thinking", "text", "reasoning", "answer"), CASES)
def test_every_cut(thinking, text, reasoning, answer):
    for count in range(4):
        for cuts in itertools.combinations(range(len(text) + 1), min(count, 3)):
            splitter = ChannelSplitter(thinking_open=thinking)
            parts = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
            pushed = [splitter.push(part) for part in parts]
            assert "".join(r for r, _ in pushed) + splitter.finish() == reasoning
            assert "".join(a for _, a in pushed) == answer


def test_only_a_possible_marker_is_held_back():
    splitter = ChannelSplitter(thinking_open=True)
    assert splitter.push("x </") == ("x ", "")
    assert splitter.push("p") == ("</p", "")
    assert splitter.push("</think") == ("", "")
    assert splitter.push(">") == ("", "")
    assert not splitter.in_reasoning
    assert splitter.push("y") == ("", "y")
