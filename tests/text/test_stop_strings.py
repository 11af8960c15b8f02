import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_jax.text.stop_strings import StopScanner


def scan(stops, tokens):
    scanner = StopScanner(stops)
    shown = [scanner.push(token) for token in tokens]
    return "".join(shown) + scanner.finish(), scanner.match


@pytest.mark.parametrize(
    ("stops", "tokens", "shown", "match"),
    [
        ([], ["a", "b"], "ab", None),
        (["END"], ["a EN", "D b"], "a ", "END"),
        (["END"], ["a EN", "C b"], "a ENC b", None),
        (["END"], ["a EN"], "a EN", None),
        (["\n\n"], ["a\n", "b\n", "\n", "c"], "a\nb", "\n\n"),
        # fewest tokens: the shorter one is complete first
        (["abcdef", "cd"], ["ab", "cd", "ef"], "ab", "cd"),
        # same token: the one that starts first
        (["cd", "abcdef"], ["ab", "cdef"], "", "abcdef"),
        # same token, same start: the one declared first
        (["ab", "abc"], ["abc"], "", "ab"),
        (["abc", "ab"], ["abc"], "", "abc"),
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),
        (["é"], ["caf", "é", "!"], "caf", "é"),
        (["x"], ["axbxc"], "a", "x"),
    ],
)
def test_earliest_match(stops, tokens, shown, match):
    assert scan(stops, tokens) == (shown, match)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=3), max_size=10),
)
def test_agrees_with_a_search_after_every_token(stops, tokens):
    text = ""
    expected = ("".join(tokens), None)
    for token in tokens:
        text += token
        found = [(text.find(stop), order) for order, stop in enumerate(stops) if stop in text]
        if found:
            start, order = min(found)
            expected = (text[:start], stops[order])
            break
    assert scan(stops, tokens) == expected


@given(st.text("ab", min_size=1, max_size=5), st.text("abc", max_size=30))
def test_nothing_shown_is_taken_back(stop, text):
    scanner = StopScanner([stop])
    shown = ""
    for character in text:
        shown += scanner.push(character)
        assert text.partition(stop)[0].startswith(shown)
