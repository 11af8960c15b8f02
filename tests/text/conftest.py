"""A small byte-level BPE in Qwen's form, and the demo's chat template."""

from __future__ import annotations

import importlib.resources
import json

import pytest
import tokenizers
from hypothesis import settings
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ninfer_jax.text.template import ChatTemplate
from ninfer_jax.text.tokenizer import Tokenizer

# Machines that test may be busy; time is measured where it matters.
settings.register_profile("text", deadline=None, print_blob=True)
settings.load_profile("text")

SPELLINGS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> "
    "<|video_pad|> <tool_call> </tool_call> <tool_response> </tool_response> <think> </think> "
    "<|audio_start|> <|audio_pad|>"
).split()
CONFIG_ONLY = 2
SENTENCES = [
    "the user asks the assistant and the assistant thinks about tools and answers 12 + 30 = 42\n",
    "<function=lookup>\n<parameter=query>\nvalue\n</parameter>\n</function>\n",
    "system user assistant tool response call function parameter im start end think\n\n",
    "中文的提示也是普通文本。 café naïve ünïcode 😀",
]


def _record(token_id: int, spelling: str) -> dict:
    return {
        "id": token_id,
        "content": spelling,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": spelling.startswith("<|"),
    }


@pytest.fixture(scope="session")
def resources() -> tuple[dict, dict]:
    """`tokenizer.json` and `tokenizer_config.json`; the last added tokens are in the latter."""
    model = tokenizers.Tokenizer(models.BPE())
    model.normalizer = normalizers.NFC()
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=[],
    )
    model.train_from_iterator(SENTENCES * 10, trainer)
    description = json.loads(model.to_str())
    base = len(description["model"]["vocab"])
    records = [_record(base + n, spelling) for n, spelling in enumerate(SPELLINGS)]
    description["added_tokens"] = records[:-CONFIG_ONLY]
    decoder = {str(r["id"]): {k: v for k, v in r.items() if k != "id"} for r in records}
    return description, {"added_tokens_decoder": decoder}


@pytest.fixture(scope="session")
def tokenizer(resources) -> Tokenizer:
    return Tokenizer.from_resources(*(json.dumps(part).encode() for part in resources))


@pytest.fixture(scope="session")
def package_tokenizer(resources) -> tokenizers.Tokenizer:
    """The `tokenizers` package with every added token, as the oracle for plain rendering."""
    description, config = resources
    records = [{"id": int(i), **r} for i, r in config["added_tokens_decoder"].items()]
    return tokenizers.Tokenizer.from_str(json.dumps({**description, "added_tokens": records}))


@pytest.fixture(scope="session")
def demo_template() -> ChatTemplate:
    source = importlib.resources.files("ninfer_jax.demo").joinpath("chat_template.jinja")
    return ChatTemplate(source.read_text(encoding="utf-8"))
