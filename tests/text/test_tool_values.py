import pytest

from ninfer_jax.errors import RequestError
from ninfer_jax.text.tool_set import ToolSet, is_valid_name
from ninfer_jax.text.tool_values import convert

STRING = ["string"]


@pytest.mark.parametrize(
    ("types", "text", "json", "mismatched"),
    [
        # admits string: verbatim, also empty
        (STRING, "7", '"7"', False),
        (STRING, "", '""', False),
        (STRING, ' {"a": 1}\n', '" {\\"a\\": 1}\\n"', False),
        (["string", "null"], "null", '"null"', False),
        (["integer", "string"], "7", '"7"', False),
        # not string: empty is left out
        (["integer"], "", None, False),
        (["object"], " \n ", None, False),
        # boolean
        (["boolean"], "true", "true", False),
        (["boolean"], "True", "true", False),
        (["boolean"], "FALSE", "false", False),
        (["boolean"], " false\n", "false", False),
        (["boolean"], "yes", '"yes"', True),
        (["boolean"], "1", "1", True),
        # integer: original spelling
        (["integer"], "7", "7", False),
        (["integer"], "7.0", "7.0", False),
        (["integer"], "1e2", "1e2", False),
        (["integer"], "-0", "-0", False),
        (["integer"], "7.5", "7.5", True),
        (["integer"], "seven", '"seven"', True),
        (["integer"], "+7", '"+7"', True),
        (["integer"], '"7"', '"7"', True),
        # number, null, array, object
        (["number"], "0.50", "0.50", False),
        (["number"], "9" * 400, "9" * 400, False),
        (["number"], "NaN", '"NaN"', True),
        (["null"], "null", "null", False),
        (["null"], "None", '"None"', True),
        (["array"], '[1,2.0, "a"]', '[1, 2.0, "a"]', False),
        (["array"], '{"a":1}', '{"a": 1}', True),
        (["object"], '{"z": 1, "a": {"é": 1e2}}', '{"z": 1, "a": {"é": 1e2}}', False),
        (["object"], "[1]", "[1]", True),
        (["object"], '{"a":}', '"{\\"a\\":}"', True),
        (["integer", "null"], "null", "null", False),
        (["integer", "boolean"], "True", "true", False),
        (["array"], "[" * 100_000, '"' + "[" * 100_000 + '"', True),
        # none: JSON if it parses, else string
        (None, "7.0", "7.0", False),
        (None, "true", "true", False),
        (None, "True", '"True"', False),
        (None, '"a"', '"a"', False),
        (None, "plain", '"plain"', False),
        (None, " spaced ", '" spaced "', False),
        (None, "", '""', False),
        (None, '{"a": [1]}', '{"a": [1]}', False),
    ],
)
def test_conversion(types, text, json, mismatched):
    value = convert(text, None if types is None else frozenset(types))
    assert (value.json, value.mismatched) == (json, mismatched)


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"type": "string"}, {"type": "number"}]}, {"string", "number"}),
        ({"anyOf": [{"type": "integer"}, {"type": "object"}]}, None),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/x"}]}, None),
        ({"anyOf": []}, None),
        ({"allOf": [{"type": "integer"}]}, None),
        ({"enum": [1, 2]}, None),
        ({"type": "int"}, None),
        ({"type": 3}, None),
        ({}, None),
        (True, None),
    ],
)
def test_type_hint(schema, hint):
    tools = ToolSet({"f": {"properties": {"a": schema}}})
    assert tools.type_hint("f", "a") == (None if hint is None else frozenset(hint))
    assert tools.type_hint("f", "other") is None


def test_definitions_in_every_wire_form():
    schema = {"properties": {"a": {"type": "integer"}}}
    definitions = [
        {"type": "function", "function": {"name": "chat", "parameters": schema}},
        {"type": "function", "name": "responses", "parameters": schema},
        {"name": "anthropic", "input_schema": schema},
        {"type": "function", "function": {"name": "bare"}},
    ]
    tools = ToolSet.from_definitions(definitions)
    assert tools.names == ("chat", "responses", "anthropic", "bare")
    assert all(tools.type_hint(name, "a") == {"integer"} for name in tools.names[:3])
    assert tools.type_hint("bare", "a") is None
    assert ToolSet.from_definitions(definitions, allowed=["bare"]).names == ("bare",)
    assert not ToolSet.from_definitions(definitions, allowed=[])
    assert not ToolSet.from_definitions(None)


@pytest.mark.parametrize(
    ("name", "longest", "valid"),
    [
        ("a_B-9", 64, True), ("", 64, False), ("a" * 64, 64, True), ("a" * 65, 64, False),
        ("a" * 128, 128, True), ("a b", 64, False), ("a.b", 64, False), ("é", 64, False),
        ("a\n", 64, False),
    ],
)  # fmt: skip
def test_names(name, longest, valid):
    assert is_valid_name(name, longest) is valid
    if not valid:
        with pytest.raises(RequestError, match=r"tools\[0\]"):
            ToolSet.from_definitions([{"name": name}], longest_name=longest)


def test_a_name_given_twice():
    with pytest.raises(RequestError, match="defined twice"):
        ToolSet.from_definitions([{"name": "f"}, {"name": "f"}])
