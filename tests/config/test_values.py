"""Strict readers of option values."""

from __future__ import annotations

import pytest

from ninfer_jax.config.values import (
    Choice,
    Integer,
    IntegerOr,
    Mebibytes,
    Real,
    Repeated,
    Switch,
    Text,
)

PORT = Integer(1, 65535)
CHUNK = Integer(128, multiple_of=128)
REAL = Real(-2, 2)
CAPACITY = IntegerOr(Integer(1), "auto")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (PORT, "1", 1),
        (PORT, "65535", 65535),
        (PORT, "0080", 80),
        (CHUNK, "128", 128),
        (CHUNK, "1024", 1024),
        (Integer(0, 2**64 - 1), str(2**64 - 1), 2**64 - 1),
        (REAL, "-2", -2.0),
        (REAL, "2.0", 2.0),
        (REAL, ".5", 0.5),
        (REAL, "1e-3", 0.001),
        (CAPACITY, "auto", "auto"),
        (CAPACITY, "7", 7),
        (Mebibytes(), "0.5", 0.5),
        (Mebibytes(), "0", 0.0),
        (Choice(("a", "b")), "b", "b"),
        (Text(), " x ", " x "),
        (Repeated(Integer(0)), "3", 3),
    ],
)
def test_parse_accepts(kind, text, value):
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (PORT, "0"),
        (PORT, "65536"),
        (PORT, "+80"),
        (PORT, "-80"),
        (PORT, "8_0"),
        (PORT, "0x50"),
        (PORT, " 80"),
        (PORT, "80 "),
        (PORT, "80k"),
        (PORT, "80.0"),
        (PORT, ""),
        (PORT, "٨٠"),
        (PORT, "1" * 5000),
        (CHUNK, "0"),
        (CHUNK, "127"),
        (CHUNK, "129"),
        (REAL, "2.001"),
        (REAL, "-2.001"),
        (REAL, "nan"),
        (REAL, "inf"),
        (REAL, "1_0"),
        (REAL, "+1"),
        (REAL, "1e999"),
        (REAL, "."),
        (REAL, ""),
        (CAPACITY, "AUTO"),
        (CAPACITY, "0"),
        (Mebibytes(), "-1"),
        (Mebibytes(), "0.3"),
        (Mebibytes(), "1e3"),
        (Choice(("a", "b")), "A"),
        (Choice(("a", "b")), ""),
        (Text(), ""),
        (Switch(), "true"),
    ],
)
def test_parse_refuses(kind, text):
    with pytest.raises(ValueError):
        kind.parse(text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (PORT, "1024"),
        (PORT, True),
        (PORT, 80.0),
        (PORT, 0),
        (CHUNK, 100),
        (REAL, "1"),
        (REAL, True),
        (REAL, float("nan")),
        (REAL, 3),
        (CAPACITY, "full"),
        (Mebibytes(), -1),
        (Mebibytes(), True),
        (Choice(("a",)), 1),
        (Text(), ""),
        (Text(), 5),
        (Switch(), 1),
        (Switch(), "yes"),
        (Repeated(Text()), "one"),
        (Repeated(Text()), [1]),
    ],
)
def test_check_refuses_values_of_another_type(kind, value):
    """A config file is read as strictly as a command line."""
    with pytest.raises(ValueError):
        kind.check(value)


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (PORT, 80, 80),
        (REAL, 1, 1.0),
        (Mebibytes(), 8192, 8192.0),
        (Switch(), False, False),
        (Repeated(Text()), ["a", "b"], ("a", "b")),
        (CAPACITY, "auto", "auto"),
    ],
)
def test_check_accepts(kind, value, kept):
    assert kind.check(value) == kept


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (PORT, "an integer from 1 to 65535"),
        (Integer(1), "an integer 1 or more"),
        (CHUNK, "an integer 128 or more, a multiple of 128"),
        (CAPACITY, "an integer 1 or more or 'auto'"),
        (REAL, "a number from -2 to 2"),
        (Choice(("a", "b")), "one of a, b"),
    ],
)
def test_expected_says_what_is_right(kind, words):
    assert kind.expected == words
