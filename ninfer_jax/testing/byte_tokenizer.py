"""A tokenizer whose ids are bytes, with the control tokens of Qwen: for tests without a model."""

from __future__ import annotations

import json

from ninfer_jax.text.tokenizer import Tokenizer, byte_alphabet

CONTROL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_SPECIAL = 7
"""How many of the control tokens a detokenizer hides; they come first."""


def byte_tokenizer() -> Tokenizer:
    """Ids 0..255 are the bytes, ids from 256 on the control tokens."""
    vocabulary = dict(byte_alphabet())
    added = [
        {
            "id": 256 + index,
            "content": spelling,
            "special": index < _SPECIAL,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
            "normalized": False,
        }
        for index, spelling in enumerate(CONTROL_TOKENS)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    description = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    return Tokenizer.from_resources(json.dumps(description).encode(), b"{}")
