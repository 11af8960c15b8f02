import copy
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_jax.errors import ArtifactError
from ninfer_jax.text.tokenizer import Tokenizer, byte_alphabet

TEXTS = [
    "",
    "the user asks",
    "café cafe\u0301 \u2126 中文 😀 \x00\t\r\n  end  ",
    "a<b <| |> <think <thinkthink> < think>",
    "12345 it's they'LL\n\n\nx",
]


def load(description, config=None):
    return Tokenizer.from_resources(
        json.dumps(description).encode(), json.dumps(config or {}).encode()
    )


def test_alphabet_is_a_bijection_with_all_bytes():
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["A"]) == (0x20, 0x0A, 0x41)


def test_known_tokens_come_from_the_file(tokenizer, resources):
    description, config = resources
    base = len(description["model"]["vocab"])
    assert tokenizer.vocabulary_size == base + len(config["added_tokens_decoder"])
    assert tokenizer.known.end_of_text == base
    assert tokenizer.known.end_of_turn == tokenizer.id_of("<|im_end|>") == base + 2
    assert tokenizer.stop_token_ids == {base, base + 2}
    assert tokenizer.id_of("<|audio_pad|>") == tokenizer.vocabulary_size - 1
    assert tokenizer.token_bytes(tokenizer.known.think_close) == b"</think>"
    with pytest.raises(KeyError):
        tokenizer.id_of("<nothing>")


@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_is_encoded_as_the_package_does(tokenizer, package_tokenizer, text):
    expected = package_tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, allow_special=False) == expected
    assert tokenizer.encode(text, allow_special=True) == expected


def test_added_tokens_match_as_the_package_does(tokenizer, package_tokenizer):
    text = "x<|im_start|>user\n<think></think>cafe\u0301<|im_end|><|audio_pad|><|im_<|im_end|>"
    expected = package_tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, allow_special=True) == expected


def test_longest_added_token_wins(resources):
    description, config = copy.deepcopy(resources)
    config["added_tokens_decoder"][str(load(description, config).vocabulary_size)] = {
        "content": "<think><|im_end|>"
    }
    tokenizer = load(description, config)
    assert tokenizer.encode("<think><|im_end|>", allow_special=True) == [
        tokenizer.id_of("<think><|im_end|>")
    ]


def test_no_caller_text_gives_an_added_token(tokenizer):
    for token in tokenizer.added_tokens.values():
        ids = tokenizer.encode(f"a{token.spelling}b", allow_special=False)
        assert not tokenizer.added_tokens.keys() & set(ids)
        assert tokenizer.decode(ids) == f"a{token.spelling}b"


def test_added_token_in_the_vocabulary_is_not_reached_by_plain_text(resources):
    description, config = copy.deepcopy(resources)
    for record in description["added_tokens"]:
        description["model"]["vocab"][record["content"]] = record["id"]
    description["model"]["ignore_merges"] = True
    description["pre_tokenizer"]["use_regex"] = False
    tokenizer = load(description, config)
    ids = tokenizer.encode("<think>", allow_special=False)
    assert tokenizer.known.think_open not in ids
    assert tokenizer.encode("<think>", allow_special=True) == [tokenizer.known.think_open]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_are_exact(tokenizer, text):
    ids = tokenizer.encode(text, allow_special=False)
    assert tokenizer.decode_bytes(ids).decode() == unicodedata.normalize("NFC", text)


def test_bytes_of_half_a_character(tokenizer):
    ids = tokenizer.encode("\U0001f9ff", allow_special=False)
    assert len(ids) > 1
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == "\U0001f9ff".encode()
    assert tokenizer.decode(ids[:1]) == "�"


def test_lone_surrogates_are_replaced_and_pairs_joined(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud800b", allow_special=False)) == "a�b"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00", allow_special=False)) == "😀"


def test_hiding_special_tokens_keeps_markers(tokenizer):
    ids = tokenizer.encode("<|im_end|>x</think><tool_call>", allow_special=True)
    assert tokenizer.decode(ids) == "<|im_end|>x</think><tool_call>"
    assert tokenizer.decode(ids, hide_special=True) == "x</think><tool_call>"


def test_markers_are_shown_even_if_the_file_calls_them_special(resources):
    description, config = copy.deepcopy(resources)
    for record in description["added_tokens"]:
        record["special"] = True
    tokenizer = load(description, config)
    assert tokenizer.token_bytes(tokenizer.known.think_close, hide_special=True) == b"</think>"
    assert tokenizer.token_bytes(tokenizer.known.end_of_turn, hide_special=True) == b""


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_ids_that_are_not_addressable(tokenizer, token_id):
    with pytest.raises(ValueError, match="token id"):
        tokenizer.token_bytes(token_id)


def spoil(*path, value):
    def change(description, config):
        target = description if path[0] != "config" else config
        keys = path if path[0] != "config" else path[1:]
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def drop_last_of_json(description, config):
    gone = description["added_tokens"].pop()
    del config["added_tokens_decoder"][str(gone["id"])]


def drop_end_of_turn(description, config):
    for record in (*description["added_tokens"], *config["added_tokens_decoder"].values()):
        if record["content"] == "<|im_end|>":
            record["content"] = "<|other|>"


def repeat_an_id(description, config):
    first, second, *_ = description["model"]["vocab"]
    description["model"]["vocab"][first] = description["model"]["vocab"][second]


def foreign_piece(description, config):
    piece, token_id = next(iter(description["model"]["vocab"].items()))
    del description["model"]["vocab"][piece]
    description["model"]["vocab"]["中"] = token_id


def contradiction(description, config):
    description["added_tokens"][0]["content"] = "<|other|>"


def vocabulary_contradiction(description, config):
    description["model"]["vocab"]["zzz"] = description["added_tokens"][0]["id"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_last_of_json, r"id \d+ has no token, yet id \d+ has"),
        (drop_end_of_turn, r"no added token is spelled '<\|im_end\|>'"),
        (repeat_an_id, "given to two vocabulary entries"),
        (foreign_piece, "not spelled in the byte alphabet"),
        (contradiction, "contradicts"),
        (vocabulary_contradiction, "among the added tokens"),
        (spoil("model", "type", value="Unigram"), "not of type BPE"),
        (spoil("model", "vocab", value={}), "has no vocab"),
        (spoil("model", "vocab", value={"a": "0"}), "not an integer"),
        (spoil("model", "merges", value=[["never", "seen"]]), "tokenizer.json"),
        (spoil("pre_tokenizer", value=None), "no ByteLevel"),
        (spoil("added_tokens", 0, "lstrip", value=True), "exact matching"),
        (spoil("added_tokens", 0, "id", value=None), "lacks an id"),
        (spoil("config", "added_tokens_decoder", value={"x": {}}), "added_tokens_decoder"),
        (spoil("config", "added_tokens_decoder", value={"9": {"content": "[INST]"}}), "start with"),
    ],
)
def test_malformed_resources(resources, change, message):
    description, config = copy.deepcopy(resources)
    change(description, config)
    with pytest.raises(ArtifactError, match=message):
        load(description, config)


@pytest.mark.parametrize("resource", [b"", b"{", b"[]", b"\xff\xfe"])
def test_resources_that_are_no_json_object(resource):
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Tokenizer.from_resources(resource, b"{}")
