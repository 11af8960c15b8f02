"""What the model is trained on is what the server will show it."""

from __future__ import annotations

import importlib.resources
import itertools
import json

import numpy as np
import pytest

from ninfer_jax.demo.generator import training_stream
from ninfer_jax.demo.samples import messages_of
from ninfer_jax.text.prompt import PromptOptions, build_prompt
from ninfer_jax.text.template import ChatTemplate
from ninfer_jax.text.tokenizer import Tokenizer
from ninfer_jax.text.tool_calls import parse_tool_calls
from ninfer_jax.text.tool_set import ToolSet
from tools.train_demo.data import LENGTHS, Renderer, batches, load_tokenizer, prefetched


@pytest.fixture(scope="module")
def server_side(work):
    """Tokenizer and template as the server loads them from an artifact."""
    tokenizer = Tokenizer.from_resources(
        (work / "tokenizer.json").read_bytes(), (work / "tokenizer_config.json").read_bytes()
    )
    source = importlib.resources.files("ninfer_jax.demo").joinpath("chat_template.jinja")
    return tokenizer, ChatTemplate(source.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def samples():
    return list(itertools.islice(training_stream(seed=21), 1_500))


def test_the_server_s_prompt_is_the_row_up_to_the_answer(work, server_side, samples):
    """Same ids, and the answer ends with the turn: no token is learned twice or left out."""
    tokenizer, template = server_side
    render = Renderer(load_tokenizer(work))
    end = tokenizer.known.end_of_turn
    for sample in samples:
        ids, mask = render(sample)
        prompt = build_prompt(
            tokenizer,
            template,
            messages_of(sample, with_answer=False),
            list(sample.tools) or None,
            PromptOptions(enable_thinking=sample.thinking),
        )
        count = len(prompt.ids)
        assert tuple(ids[:count]) == prompt.ids, sample
        assert prompt.thinking_open == sample.thinking
        answer = ids[count:]
        assert list(answer).index(end) == len(answer) - 2, "the turn ends, a line break follows"
        np.testing.assert_array_equal(mask[count:], [1] * (len(answer) - 1) + [0])


def test_the_learned_answer_is_the_sample_s(work, server_side, samples):
    tokenizer, _ = server_side
    render = Renderer(load_tokenizer(work))
    for sample in samples:
        ids, mask = render(sample)
        turn = sample.turns[-1]
        # The last learned run is the last answer.
        start = len(ids) - 1 - next(i for i, m in enumerate(mask[-2::-1]) if m == 0)
        text = tokenizer.decode(ids[start : len(ids) - 2])
        if sample.thinking:
            reasoning, text = text.split("\n</think>\n\n")
            assert reasoning == turn.reasoning
        if turn.call is None:
            assert text == turn.answer
            continue
        parsed = parse_tool_calls(text, ToolSet.from_definitions(list(sample.tools)))
        assert not parsed.content
        (call,) = parsed.calls
        assert (call.name, json.loads(call.arguments)) == turn.call


def test_questions_and_declarations_are_never_learned(work, server_side, samples):
    tokenizer, _ = server_side
    render = Renderer(load_tokenizer(work))
    given = [
        tokenizer.id_of(token)
        for token in ("<|im_start|>", "<think>", "<tool_response>", "</tool_response>")
    ]
    for sample in samples:
        ids, mask = render(sample)
        assert not mask[np.isin(ids, given)].any()


def test_no_conversation_is_too_long_for_the_rows(work, samples):
    render = Renderer(load_tokenizer(work))
    assert max(len(render(sample)[0]) for sample in samples) <= LENGTHS[-1]


def test_batches_are_rows_of_one_length_and_repeat(work):
    first = list(itertools.islice(batches(work, seed=4, tokens_per_batch=1024), 12))
    again = list(itertools.islice(prefetched(batches(work, 4, 1024)), 12))
    for batch, same in zip(first, again, strict=True):
        rows, length = batch.tokens.shape
        assert length in LENGTHS and rows % 4 == 0
        assert rows == max(4, 1024 // length // 4 * 4)
        assert batch.tokens.dtype == np.int32 and batch.loss_mask.dtype == np.float32
        assert batch.loss_mask.any(axis=1).all(), "every row teaches something"
        np.testing.assert_array_equal(batch.tokens, same.tokens)
        np.testing.assert_array_equal(batch.loss_mask, same.loss_mask)
