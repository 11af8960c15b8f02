import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_jax.text.matching import StreamMatcher

SMALL = st.text("ab<", max_size=12)


@given(st.text("ab<", min_size=1, max_size=6), st.lists(SMALL, max_size=8))
def test_agrees_with_find_for_every_cut(pattern, pieces):
    matcher = StreamMatcher(pattern)
    whole = "".join(pieces)
    fed = 0
    for piece in pieces:
        consumed = matcher.feed(piece)
        if consumed is not None:
            assert fed + consumed == whole.find(pattern) + len(pattern)
            return
        fed += len(piece)
        seen = whole[:fed]
        longest = max(n for n in range(len(pattern)) if seen.endswith(pattern[:n]))
        assert matcher.matched == longest
    assert pattern not in whole


def test_empty_pattern():
    with pytest.raises(ValueError):
        StreamMatcher("")
