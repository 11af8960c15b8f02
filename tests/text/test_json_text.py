import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_jax.text.json_text import dump_json, is_integral, is_json_number, parse_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab<"\\\n'), inner),
    max_leaves=10,
)


@given(JSON)
def test_writes_what_the_standard_library_writes(value):
    assert dump_json(value) == json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    "text",
    [
        "7.0",
        "1e2",
        "1E+2",
        "-0",
        "0.10",
        "9" * 5000,
        '{"z": 1.50, "a": [2e0, {"k": -0.0}]}',
        "1e999",
    ],
)
def test_numbers_keep_their_spelling_and_keys_their_order(text):
    assert dump_json(parse_json(text)) == text


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-Infinity", "{,}", "1 2", "01", "[" * 100000]
)
def test_refuses_what_is_not_json(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_lone_surrogates_stay_escaped():
    assert dump_json(parse_json('"\\ud800x"')) == '"\\ud800x"'
    assert dump_json(parse_json('"\\ud83d\\ude00"')) == '"😀"'


@pytest.mark.parametrize(
    ("number", "integral"),
    [
        ("7", True), ("-7", True), ("0", True), ("-0", True), ("0.0", True), ("7.0", True),
        ("1e2", True), ("1E+2", True), ("12.30e1", True), ("100e-2", True), ("0e-5", True),
        ("1e999999999999999", True), ("7.5", False), ("1e-1", False), ("12.34e1", False),
        ("100e-3", False), ("1e-999999999999999", False), ("0.10", False),
    ],
)  # fmt: skip
def test_integral_whatever_the_spelling(number, integral):
    assert is_json_number(number)
    assert is_integral(number) is integral


@pytest.mark.parametrize("text", ["", "+1", "01", ".5", "5.", "1e", "0x1", "1 ", "١"])
def test_not_a_json_number(text):
    assert not is_json_number(text)
