"""Which tokens the proposal head scores, from a file of token frequencies.

Three forms are read: `.npy` and raw little-endian int64, both `[rows, vocab_size]` of which row 0
holds the counts, and text with one `id count` pair a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ninfer_jax.artifact.geometry import QWEN_27B
from ninfer_jax.artifact.strict_json import parse_json
from ninfer_jax.errors import ArtifactError

_NPY_MAGIC = b"\x93NUMPY"


def token_counts(path: Path, vocab_size: int, public_tokens: int) -> np.ndarray:
    """The counts of the public tokens, int64 `[V]`; a token that a text omits has count 0.

    Raises `ArtifactError` naming the file, and the line of a text.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from None
    if data.startswith(_NPY_MAGIC):
        counts = _npy(path, vocab_size)
    elif path.suffix == ".txt":
        counts = _text(data, path, vocab_size, public_tokens)
    elif data and len(data) % (8 * vocab_size) == 0:
        counts = np.frombuffer(data, "<i8", vocab_size)
    else:
        raise ArtifactError(
            f"{path}: {len(data)} bytes are no rows of {vocab_size} int64 counts; expected those, "
            "an .npy file, or a .txt file with one 'id count' pair a line"
        )
    counts = counts[:public_tokens].astype(np.int64)
    if counts.min() < 0:
        raise ArtifactError(f"{path}: token {int(counts.argmin())} has a negative count")
    return counts


def _npy(path: Path, vocab_size: int) -> np.ndarray:
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ArtifactError(f"{path}: not readable as .npy: {error}") from None
    if table.dtype != np.int64 or table.shape[-1:] != (vocab_size,) or table.ndim > 2:
        raise ArtifactError(
            f"{path}: {table.dtype} {list(table.shape)}, expected int64 [rows, {vocab_size}]"
        )
    return np.atleast_2d(table)[0]


def _text(data: bytes, path: Path, vocab_size: int, public_tokens: int) -> np.ndarray:
    counts = np.zeros(public_tokens, np.int64)
    seen: set[int] = set()
    for number, line in enumerate(data.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdigit() and len(word) < 19 for word in words):
            raise ArtifactError(f"{path}: line {number}: {line[:60]!r}, expected 'id count'")
        token, count = int(words[0]), int(words[1])
        if token >= vocab_size or token in seen:
            problem = "occurs twice" if token in seen else f"is outside [0, {vocab_size})"
            raise ArtifactError(f"{path}: line {number}: token {token} {problem}")
        seen.add(token)
        if token < public_tokens:
            counts[token] = count
    return counts


def special_tokens(resources: Mapping[str, bytes]) -> np.ndarray:
    """Ascending ids that one of the two tokenizer resources flags as special.

    Both have passed `check_token_ids`.
    """
    found: set[int] = set()
    tokenizer = parse_json(resources["tokenizer.json"], "tokenizer.json")
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if entry.get("special"):
            found.add(entry["id"])
    config = parse_json(resources["tokenizer_config.json"], "tokenizer_config.json")
    for token, entry in (config.get("added_tokens_decoder") or {}).items():
        if entry.get("special"):
            found.add(int(token))
    return np.array(sorted(found), np.int64)


def proposal_tokens(
    counts: np.ndarray, forced: np.ndarray, rows: int = QWEN_27B.proposal_rows
) -> np.ndarray:
    """The token of each row of the proposal head, int32, by descending count.

    The most frequent tokens outside `forced` fill `rows - len(forced)` places, `forced` (ascending)
    the others; equal counts keep ascending ids, picked before forced. A smaller vocabulary is
    taken whole.

    Counts 5 9 9 1 0, forced 4, 3 rows: 1 and 2 are picked, then 4; the order is 1 2 4.
    """
    rows = min(rows, len(counts))
    if len(forced) > rows:
        raise ArtifactError(
            f"tokenizer: {len(forced)} special tokens do not fit a proposal head of {rows} rows"
        )
    order = np.argsort(-counts, kind="stable")
    picked = order[~np.isin(order, forced)][: rows - len(forced)]
    chosen = np.concatenate([picked, forced])
    return chosen[np.argsort(-counts[chosen], kind="stable")].astype(np.int32)
