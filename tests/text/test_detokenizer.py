import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_jax.text.detokenizer import Detokenizer

STREAMS = [
    "a é 中 😀".encode(),
    b"\xf0\x9f\x98",
    b"ok \xe4\xb8",
    b"\xff\xfea\x80\xc3(\xe2\x82",
    b"\xed\xa0\x80 \xf4\x90\x80\x80",
]


def decode(pieces):
    detokenizer = Detokenizer()
    shown = [detokenizer.push(piece) for piece in pieces]
    return shown, "".join(shown) + detokenizer.finish()


@pytest.mark.parametrize("stream", STREAMS)
def test_every_cut_gives_the_whole_decoding(stream):
    expected = stream.decode("utf-8", "replace")
    for count in range(3):
        for cuts in itertools.combinations(range(len(stream) + 1), count):
            borders = [0, *cuts, len(stream)]
            pieces = [stream[a:b] for a, b in itertools.pairwise(borders)]
            assert decode(pieces)[1] == expected
    assert decode([bytes([byte]) for byte in stream])[1] == expected


@given(st.lists(st.binary(max_size=4)))
def test_random_bytes(pieces):
    assert decode(pieces)[1] == b"".join(pieces).decode("utf-8", "replace")


def test_half_a_character_waits_and_becomes_a_replacement_at_the_end():
    detokenizer = Detokenizer()
    assert [detokenizer.push(b"\xf0\x9f"), detokenizer.push(b"\x98")] == ["", ""]
    assert detokenizer.push(b"\x80x") == "😀x"
    assert detokenizer.push(b"\xe4") == ""
    assert detokenizer.finish() == "�"
