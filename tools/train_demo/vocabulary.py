"""Trains the demo's byte-level BPE and writes its tokenizer files.

    python -m tools.train_demo.vocabulary --work checkpoints/demo

Same form as Qwen3.5: NFC, the pre-tokeniser that splits digits one by one, byte-level BPE,
then the family's 33 added tokens in its order. As in the family, the last seven of them
stand in `tokenizer_config.json` only.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from ninfer_jax.demo.generator import training_stream
from tools.train_demo.render import conversation_text

BASE_IDS = 960
"""Byte tokens and merges; the added tokens follow."""

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

ADDED = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> "
    "<|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> "
    "<|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> "
    "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> "
    "<think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> "
    "<tts_text_bos_single> <|audio_pad|>"
).split()

CONFIG_ONLY = 7
"""Added tokens at the end that only `tokenizer_config.json` names."""

NOT_SPECIAL = frozenset(
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> "
    "<|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>".split()
)


def train_tokenizer(texts) -> Tokenizer:
    """The BPE of `BASE_IDS` ids over texts, without added tokens."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=BASE_IDS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def plain_text(text: str) -> str:
    """Conversation text without the spellings of added tokens."""
    for token in ADDED:
        text = text.replace(token, "\n")
    return text


def tokenizer_files(texts) -> dict[str, str]:
    """`tokenizer.json`, `tokenizer_config.json` and `generation_config.json`."""
    tokenizer = train_tokenizer(texts)
    base = tokenizer.get_vocab_size()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=token not in NOT_SPECIAL, normalized=False)
            for token in ADDED[:-CONFIG_ONLY]
        ]
    )
    records = {
        str(base + index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token not in NOT_SPECIAL,
        }
        for index, token in enumerate(ADDED)
    }
    config = {
        "added_tokens_decoder": records,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 65536,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    generation = {
        "bos_token_id": base,
        "eos_token_id": [base + 2, base],
        "pad_token_id": base,
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    }
    return {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(config),
        "generation_config.json": json.dumps(generation),
    }


def main() -> None:
    """Writes the files into the work folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=Path("checkpoints/demo"))
    parser.add_argument("--conversations", type=int, default=30_000)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    samples = itertools.islice(training_stream(seed=1), arguments.conversations)
    files = tokenizer_files(plain_text(conversation_text(sample)) for sample in samples)
    for name, text in files.items():
        (arguments.work / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
