"""The public token ids: those that the two tokenizer resources name between them."""

from __future__ import annotations

from ninfer_jax.artifact.records import Record
from ninfer_jax.artifact.strict_json import parse_json
from ninfer_jax.errors import ArtifactError


def check_token_ids(tokenizer_json: bytes, tokenizer_config: bytes, vocab_size: int) -> int:
    """Return the number V of public ids, which are exactly `0..V-1`.

    Raises `ArtifactError` when ids leave a gap, when one id has two contents, or when an id is not
    below `vocab_size`, the number of embedding rows.
    """
    contents: dict[int, str] = {}

    def add(token_id: object, content: object, where: str) -> None:
        if type(token_id) is not int or not isinstance(content, str):
            raise ArtifactError(f"{where}: token {str(content)[:80]!a} has no integer id")
        if not 0 <= token_id < vocab_size:
            raise ArtifactError(
                f"{where}: token id {token_id} is outside the {vocab_size} rows of the vocabulary"
            )
        known = contents.setdefault(token_id, content)
        if known != content:
            raise ArtifactError(
                f"{where}: token id {token_id} is {content!a} here, {known!a} before"
            )

    where = "tokenizer.json"
    root = Record(parse_json(tokenizer_json, where), where)
    model = _member(root, "model")
    for content, token_id in _member(model, "vocab").value.items():
        add(token_id, content, where)
    added = root.value.get("added_tokens") or []
    for entry in added if isinstance(added, list) else []:
        record = Record(entry, f"{where}.added_tokens")
        add(record.value.get("id"), record.value.get("content"), where)
    where = "tokenizer_config.json"
    root = Record(parse_json(tokenizer_config, where), where)
    if "added_tokens_decoder" in root:
        for key, entry in root.record("added_tokens_decoder").value.items():
            if not (key.isascii() and key.isdecimal() and len(key) < 12):
                raise ArtifactError(f"{where}.added_tokens_decoder: {key[:80]!a} is not a token id")
            add(int(key), Record(entry, f"{where}: token {key}").value.get("content"), where)
    if not contents:
        raise ArtifactError("tokenizer.json: the vocabulary is empty")
    if len(contents) != max(contents) + 1:
        gap = next(index for index in range(len(contents)) if index not in contents)
        raise ArtifactError(
            f"token id {gap} is missing: ids reach {max(contents)} but only {len(contents)} exist"
        )
    return len(contents)


def _member(record: Record, name: str) -> Record:
    if name not in record:
        raise ArtifactError(f"{record.label}: missing member {name!r}")
    return record.record(name)
