"""A vocabulary over a small corpus, trained once for this folder."""

from __future__ import annotations

import itertools

import pytest

from ninfer_jax.demo.generator import training_stream
from tools.train_demo.render import conversation_text
from tools.train_demo.vocabulary import plain_text, tokenizer_files


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """A work folder with tokenizer files."""
    folder = tmp_path_factory.mktemp("demo")
    samples = itertools.islice(training_stream(seed=1), 3_000)
    files = tokenizer_files(plain_text(conversation_text(sample)) for sample in samples)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
