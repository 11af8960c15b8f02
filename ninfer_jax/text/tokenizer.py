"""The tokenizer of an artifact: text to ids, ids to exact bytes.

The `tokenizers` package runs the byte-level BPE of `tokenizer.json` for plain text only. Added
tokens (control tokens) are matched here, because whether a spelling such as `<|im_end|>` is a
control token or text depends on who wrote it, which the package cannot know: the chat template
may write control tokens, a caller may not.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from ninfer_jax.errors import ArtifactError

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """One added token: matched exactly, never produced from plain text.

    Attributes:
      token_id: its id.
      spelling: its text.
      special: True if a detokenizer that hides special tokens hides it.
    """

    token_id: int
    spelling: str
    special: bool


@dataclasses.dataclass(frozen=True)
class KnownTokens:
    """Ids of the control tokens that the program itself must know, found by spelling.

    A token that the tokenizer lacks is None; `end_of_turn` is always there.
    """

    end_of_turn: int
    end_of_text: int | None
    start_of_turn: int | None
    think_open: int | None
    think_close: int | None
    tool_call_open: int | None
    tool_call_close: int | None
    tool_response_open: int | None
    tool_response_close: int | None
    vision_start: int | None
    vision_end: int | None
    image_pad: int | None
    video_pad: int | None


_SPELLINGS = {
    "end_of_turn": "<|im_end|>",
    "end_of_text": "<|endoftext|>",
    "start_of_turn": "<|im_start|>",
    "think_open": "<think>",
    "think_close": "</think>",
    "tool_call_open": "<tool_call>",
    "tool_call_close": "</tool_call>",
    "tool_response_open": "<tool_response>",
    "tool_response_close": "</tool_response>",
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
    "image_pad": "<|image_pad|>",
    "video_pad": "<|video_pad|>",
}
_MARKERS = ("think_open", "think_close", "tool_call_open", "tool_call_close")


class Tokenizer:
    """Byte-level BPE with control tokens under the program's own rule.

    Attributes:
      vocabulary_size: number of addressable ids; they are 0 .. vocabulary_size - 1.
      added_tokens: added tokens by id.
      known: ids of the control tokens the program must know.
      stop_token_ids: ids that end a sequence: end of turn and, if present, end of text.
      control_pattern: matches any added token in a text, longest first.
    """

    def __init__(
        self,
        plain: tokenizers.Tokenizer,
        token_bytes: Sequence[bytes],
        added_tokens: Iterable[AddedToken],
    ):
        """Takes a tokenizer that knows no added token, and the bytes of every id."""
        self._plain = plain
        self._bytes = tuple(token_bytes)
        self.vocabulary_size = len(self._bytes)
        self.added_tokens: Mapping[int, AddedToken] = {
            token.token_id: token for token in sorted(added_tokens, key=lambda t: t.token_id)
        }
        self._id_by_spelling = {t.spelling: t.token_id for t in self.added_tokens.values()}
        longest_first = sorted(self._id_by_spelling, key=len, reverse=True)
        self.control_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        found = {name: self._id_by_spelling.get(text) for name, text in _SPELLINGS.items()}
        if found["end_of_turn"] is None:
            raise ArtifactError(
                f"{_TOKENIZER}: no added token is spelled {_SPELLINGS['end_of_turn']!r}; "
                "a chat model needs one to end its turn"
            )
        self.known = KnownTokens(**found)
        ends = (self.known.end_of_turn, self.known.end_of_text)
        self.stop_token_ids = frozenset(i for i in ends if i is not None)
        # Think and tool markers are read back as text by the output decoder, so they are shown
        # even where a file flags them as special.
        markers = {found[name] for name in _MARKERS}
        self._hidden = frozenset(
            t.token_id for t in self.added_tokens.values() if t.special
        ).difference(markers)

    @classmethod
    def from_resources(cls, tokenizer_json: bytes, tokenizer_config_json: bytes) -> Tokenizer:
        """Reads the two tokenizer resources of an artifact.

        Ids beyond `tokenizer.json` come from `added_tokens_decoder` of the config. The union must
        be contiguous from 0. Raises `ArtifactError` naming the resource and the id at fault.
        """
        description = _parse(tokenizer_json, _TOKENIZER)
        config = _parse(tokenizer_config_json, _CONFIG)
        added = _added_tokens(description, config)
        vocabulary = _vocabulary(description)
        token_bytes = _bytes_by_id(vocabulary, added)
        spellings = {token.spelling for token in added}
        # An added token that is also a vocabulary entry could be reached by plain text where the
        # file sets `ignore_merges`; nothing merges into it otherwise, so it is left out.
        plain_model = {
            **description["model"],
            "vocab": {p: i for p, i in vocabulary.items() if p not in spellings or len(p) == 1},
        }
        plain_description = {
            **description,
            "model": plain_model,
            "added_tokens": [],
            "post_processor": None,
            "truncation": None,
            "padding": None,
        }
        try:
            plain = tokenizers.Tokenizer.from_str(json.dumps(plain_description))
        except Exception as error:  # The package raises bare Exception.
            raise ArtifactError(f"{_TOKENIZER}: {error}") from error
        return cls(plain, token_bytes, added)

    def id_of(self, spelling: str) -> int:
        """The id of an added token. Raises `KeyError` if there is none of that spelling."""
        return self._id_by_spelling[spelling]

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Encodes one text.

        With `allow_special`, spellings of added tokens become these tokens; without it they are
        encoded as plain text, so that no caller can write a control token.
        """
        if not allow_special:
            return self.encode_segments([text])
        segments: list[str | int] = []
        position = 0
        for found in self.control_pattern.finditer(text):
            segments += [text[position : found.start()], self._id_by_spelling[found[0]]]
            position = found.end()
        segments.append(text[position:])
        return self.encode_segments(segments)

    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        """Encodes plain texts, each on its own, and passes ids through.

        Lone surrogates, which JSON can carry and UTF-8 cannot, become U+FFFD.
        """
        texts = [_well_formed(s) for s in segments if isinstance(s, str) and s]
        encoded = iter(self._plain.encode_batch_fast(texts, add_special_tokens=False))
        ids: list[int] = []
        for segment in segments:
            if isinstance(segment, int):
                ids.append(segment)
            elif segment:
                ids.extend(next(encoded).ids)
        return ids

    def token_bytes(self, token_id: int, *, hide_special: bool = False) -> bytes:
        """The exact bytes of one id; empty for a special token with `hide_special`.

        Think and tool-call markers are never hidden. Raises `ValueError` for an id that is not
        addressable.
        """
        if not 0 <= token_id < self.vocabulary_size:
            raise ValueError(f"token id {token_id} is not in 0..{self.vocabulary_size - 1}")
        if hide_special and token_id in self._hidden:
            return b""
        return self._bytes[token_id]

    def decode_bytes(self, ids: Iterable[int], *, hide_special: bool = False) -> bytes:
        """The exact bytes of a sequence of ids."""
        return b"".join(self.token_bytes(i, hide_special=hide_special) for i in ids)

    def decode(self, ids: Iterable[int], *, hide_special: bool = False) -> str:
        """The text of a sequence of ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids, hide_special=hide_special).decode("utf-8", "replace")


def byte_alphabet() -> dict[str, int]:
    """The GPT-2 alphabet of byte-level BPE: character to byte.

    Printable Latin-1 characters stand for themselves; the 68 other bytes take the characters
    from U+0100 on, in byte order. Byte 0x20 is `Ġ` (U+0120), 0x0A is `Ċ` (U+010A).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


def _parse(resource: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(resource.decode("utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{name}: not JSON in UTF-8: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{name}: found {type(value).__name__}, expected a JSON object")
    return value


def _vocabulary(description: Mapping[str, Any]) -> dict[str, int]:
    model = description.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ArtifactError(f"{_TOKENIZER}: the model is not of type BPE")
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise ArtifactError(f"{_TOKENIZER}: the model has no vocab")
    if '"ByteLevel"' not in json.dumps(description.get("pre_tokenizer")):
        raise ArtifactError(f"{_TOKENIZER}: the pre_tokenizer has no ByteLevel step")
    return vocabulary


def _added_tokens(description: Mapping[str, Any], config: Mapping[str, Any]) -> list[AddedToken]:
    records = [(_TOKENIZER, r.get("id"), r) for r in description.get("added_tokens") or ()]
    decoder = config.get("added_tokens_decoder") or {}
    try:
        records += [(_CONFIG, int(token_id), record) for token_id, record in decoder.items()]
    except ValueError as error:
        raise ArtifactError(f"{_CONFIG}: added_tokens_decoder: {error}") from error
    by_id: dict[int, AddedToken] = {}
    by_spelling: dict[str, AddedToken] = {}
    for source, token_id, record in records:
        token = AddedToken(token_id, record.get("content"), bool(record.get("special")))
        if not isinstance(token_id, int) or not isinstance(token.spelling, str):
            raise ArtifactError(f"{source}: added token {token_id!r} lacks an id or its content")
        if not token.spelling.startswith("<"):
            # Caller text is told from control tokens by this character, see `caller_text`.
            raise ArtifactError(
                f"{source}: added token {token_id} {token.spelling!r} does not start with '<'"
            )
        if any(record.get(flag) for flag in ("lstrip", "rstrip", "single_word")):
            raise ArtifactError(
                f"{source}: added token {token_id} asks for lstrip, rstrip or single_word; "
                "only exact matching is supported"
            )
        for known in (by_id.get(token_id), by_spelling.get(token.spelling)):
            if known and (known.token_id, known.spelling) != (token_id, token.spelling):
                raise ArtifactError(
                    f"{source}: added token {token_id} {token.spelling!r} contradicts "
                    f"{known.token_id} {known.spelling!r}"
                )
        by_id.setdefault(token_id, token)
        by_spelling.setdefault(token.spelling, token)
    return list(by_id.values())


def _bytes_by_id(vocabulary: Mapping[str, int], added: Iterable[AddedToken]) -> list[bytes]:
    alphabet = byte_alphabet()
    table = {ord(character): byte for character, byte in alphabet.items()}
    spellings = {token.token_id: token.spelling for token in added}
    found: dict[int, bytes] = {i: text.encode("utf-8") for i, text in spellings.items()}
    for piece, token_id in vocabulary.items():
        if type(token_id) is not int:
            raise ArtifactError(
                f"{_TOKENIZER}: the id of {piece!r} is {token_id!r}, not an integer"
            )
        if token_id in spellings:
            if spellings[token_id] != piece:
                raise ArtifactError(
                    f"{_TOKENIZER}: id {token_id} is {piece!r} in the vocabulary and "
                    f"{spellings[token_id]!r} among the added tokens"
                )
            continue
        if token_id in found:
            raise ArtifactError(f"{_TOKENIZER}: id {token_id} is given to two vocabulary entries")
        if not alphabet.keys() >= set(piece):
            raise ArtifactError(
                f"{_TOKENIZER}: id {token_id} {piece!r} is not spelled in the byte alphabet"
            )
        found[token_id] = piece.translate(table).encode("latin-1")
    for expected, token_id in enumerate(sorted(found)):
        if token_id != expected:
            raise ArtifactError(
                f"{_TOKENIZER}: id {expected} has no token, yet id {token_id} has; "
                "the vocabulary must be contiguous from 0"
            )
    return [found[token_id] for token_id in range(len(found))]


def _well_formed(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
