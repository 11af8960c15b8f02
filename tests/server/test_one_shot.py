"""The output of the one-shot command, with accepted drafts marked."""

from __future__ import annotations

from ninfer_jax.engine.request import Delta
from ninfer_jax.server.one_shot import Output
from ninfer_jax.testing.byte_tokenizer import byte_tokenizer


def output_of(*deltas: tuple[str, tuple[bool, ...]]) -> Output:
    output = Output()
    for text, drafted in deltas:
        output.add(Delta("", text, tuple(text.encode()), drafted))
    return output


def test_runs_of_accepted_drafts_are_in_brackets():
    output = output_of(("4", ()), ("37+", (True, True, False)), ("2", (True,)), ("85", ()))
    assert output.marked(byte_tokenizer()) == "4[37]+[2]85"
    assert bytes(output.ids) == b"437+285"
    assert sum(output.drafted) == 3


def test_two_rounds_side_by_side_are_one_run_only_if_no_token_lies_between():
    assert (
        output_of(("ab", (True, True)), ("cd", (True, False))).marked(byte_tokenizer()) == "[abc]d"
    )


def test_a_character_of_several_tokens_stands_where_its_last_one_does():
    assert output_of(("四", (False, True, True)), ("x", ())).marked(byte_tokenizer()) == "[四]x"
    assert output_of(("四", (True, True, False))).marked(byte_tokenizer()) == "[]四"


def test_an_unfinished_character_is_shown_as_one_that_is_missing():
    output = Output()
    output.add(Delta("", "", (0xE5, 0x9B), ()))
    assert output.marked(byte_tokenizer()) == "\ufffd"
    assert Output().marked(byte_tokenizer()) == ""
