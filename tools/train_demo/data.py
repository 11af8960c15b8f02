"""Training batches: whole conversations of similar length, one per row.

No packing: as in serving, every row starts from an empty state. Rows are padded to one
of a few lengths and grouped by it, so a run needs few compiled shapes.

    python -m tools.train_demo.data --show 3
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer

from ninfer_jax.demo.generator import training_stream
from ninfer_jax.demo.samples import Sample
from tools.train_demo.render import conversation_text
from tools.train_demo.vocabulary import ADDED, CONFIG_ONLY, NOT_SPECIAL

LENGTHS = (40, 72, 96, 128, 160, 192, 224)
"""Row lengths; longer conversations are left out."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of one length.

    Attributes:
      tokens: int32 [B, T].
      loss_mask: float32 [B, T], 1 for tokens the model has to write.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray


def load_tokenizer(work: Path) -> Tokenizer:
    """The tokenizer with all added tokens, those of the config file included."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    tokenizer.add_tokens(
        [
            AddedToken(token, special=token not in NOT_SPECIAL, normalized=False)
            for token in ADDED[-CONFIG_ONLY:]
        ]
    )
    return tokenizer


class Renderer:
    """Turns samples into ids and loss masks."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._start = tokenizer.token_to_id("<|im_start|>")
        self._end = tokenizer.token_to_id("<|im_end|>")
        self._open = tokenizer.token_to_id("<think>")
        self._close = tokenizer.token_to_id("</think>")
        self._assistant = tokenizer.encode("assistant\n").ids

    def __call__(self, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask of the conversation.

        An answer is learned from behind `<think>` and a line break; if its think block is
        empty, from behind `</think>` and the blank line, and only in samples that are meant
        to be answered without thinking.
        """
        ids = self._tokenizer.encode(conversation_text(sample)).ids
        mask = np.zeros(len(ids), np.float32)
        header = [self._start, *self._assistant, self._open]
        turns = iter(sample.turns)
        position = 0
        while position < len(ids):
            if ids[position : position + len(header)] != header:
                position += 1
                continue
            end = ids.index(self._end, position)
            turn = next(turns)
            if turn.reasoning:
                mask[position + len(header) + 1 : end + 1] = 1
            elif not sample.thinking:
                mask[ids.index(self._close, position) + 2 : end + 1] = 1
            position = end + 1
        return np.array(ids, np.int32), mask


def batches(
    work: Path, seed: int, tokens_per_batch: int, extra: Mapping[str, float] | None = None
) -> Iterator[Batch]:
    """Endless batches, a deterministic function of the seed and the extra weights."""
    render = Renderer(load_tokenizer(work))
    waiting: dict[int, list] = collections.defaultdict(list)
    for sample in training_stream(seed, extra):
        ids, mask = render(sample)
        length = next((length for length in LENGTHS if length >= len(ids)), None)
        if length is None:
            continue
        rows = waiting[length]
        rows.append((np.pad(ids, (0, length - len(ids))), np.pad(mask, (0, length - len(ids)))))
        if len(rows) == max(4, tokens_per_batch // length // 4 * 4):
            tokens, masks = zip(*rows, strict=True)
            waiting[length] = []
            yield Batch(np.stack(tokens), np.stack(masks))


def prefetched(source: Iterator[Batch], depth: int = 8) -> Iterator[Batch]:
    """The same batches, made ahead in a background thread."""
    ready: queue.Queue[Batch] = queue.Queue(depth)

    def fill() -> None:
        for batch in source:
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


def main() -> None:
    """Prints samples and token statistics."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=Path("checkpoints/demo"))
    parser.add_argument("--show", type=int, default=1)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.work)
    render = Renderer(tokenizer)
    lengths = collections.defaultdict(list)
    learned = collections.defaultdict(list)
    for sample in itertools.islice(training_stream(seed=3), 4_000):
        name = f"{sample.task}{'' if sample.thinking else ' closed'} x{len(sample.turns)}"
        ids, mask = render(sample)
        if len(lengths[name]) < arguments.show:
            print(f"--- {name} ({len(ids)} tokens, {int(mask.sum())} learned)")
            print(conversation_text(sample))
            pieces = [tokenizer.id_to_token(i) for i in ids]
            print("|".join(p if m else f"_{p}_" for p, m in zip(pieces, mask, strict=True)))
        lengths[name].append(len(ids))
        learned[name].append(mask.sum())
    for name in lengths:
        print(
            f"{name:24s} {len(lengths[name]):5d} samples, tokens mean {np.mean(lengths[name]):.0f} "
            f"max {np.max(lengths[name])}, learned {np.mean(learned[name]):.0f}"
        )


if __name__ == "__main__":
    main()
