"""Version 3 files that are malformed in objects, parts, bindings, uses or components (12-22).

Each case edits the published vector; the numbers are those of the error list of the format.
"""

from __future__ import annotations

import struct

import pytest

from ninfer_jax.artifact import open_artifact
from ninfer_jax.errors import ArtifactError


def refuses(path, message):
    with pytest.raises(ArtifactError) as caught:
        open_artifact(path)
    assert message in caught.value.message
    assert caught.value.message.startswith("mini.ninfer: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "q3"}, "object 'weight/000000': unknown format 'q3', expected one of bf16"),
        ({"layout": "row_scale_v1"}, "layout 'row_scale_v1' is not that of format 'bf16'"),
        ({"offset": 255}, "offset 255 is not a multiple of 256"),
        ({"bytes": 4095}, "4095 bytes stored, expected 4096 for bf16 [2048]"),
        ({"format": "fp32"}, "4096 bytes stored, expected 8192 for fp32 [2048]"),
        (
            {"format": "nvfp4", "layout": "block_scale_k16_m128x4_v1"},
            "nvfp4: rank 1, expected a matrix [N, K]",
        ),
    ],
)
def test_13_to_15_objects_of_version_3_when_interpreted(minis, changes, message):
    """A listing works; the object is refused when a parameter needs it."""
    document = minis.document(3)
    document["objects"][1].update(changes)
    artifact = open_artifact(minis.write_version(3, document))
    with pytest.raises(ArtifactError) as caught:
        artifact.parameter("text/a")
    assert message in caught.value.message
    assert caught.value.message.startswith(
        "mini.ninfer: parameter 'text/a': object 'weight/000000'"
    )


def test_12_object_beyond_the_payload(minis):
    document = minis.document(3)
    document["files"][0]["payload_bytes"] = 4351
    refuses(
        minis.write_version(3, document),
        "truncated payload: object 'weight/000000' ends at 4352, the payload at 4351",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda entry: entry[:-1], "truncated: the entry file has 8447 bytes, expected 8448"),
        (lambda entry: entry + b"x", "trailing data: the entry file has 8449 bytes, expected 8448"),
    ],
)
def test_16_entry_length(minis, content, message):
    refuses(minis.write(content(minis.entry(3))), message)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda part: b"NINFER\0\3" + part[8:], "wrong magic 4e 49 4e 46 45 52 00 03, expected a"),
        (lambda part: part[:8] + struct.pack("<Q", 2) + part[16:], "part index 2, expected 1"),
        (
            lambda part: part[:16] + b"\xff" * 16 + part[32:],
            "belongs to artifact ffffffffffffffffffffffffffffffff, expected 0001020304",
        ),
        (lambda part: part[:-1], "truncated: 4351 bytes, expected 4352"),
        (lambda part: part + b"x", "trailing data: 4353 bytes, expected 4352"),
        (lambda part: part[:20], "truncated header, the part has 20 bytes"),
        (lambda part: b"", "truncated header, the part has 0 bytes"),
    ],
)
def test_17_parts(minis, edit, message):
    entry, part = minis.write_split()
    part.write_bytes(edit(part.read_bytes()))
    for read in (
        lambda artifact: artifact.open_all_files(),
        lambda artifact: artifact.parameter("text/b").words(),
    ):
        with pytest.raises(ArtifactError) as caught:
            read(open_artifact(entry))
        assert f"part file 'mini.ninfer.part-0001': {message}" in caught.value.message


@pytest.mark.parametrize(
    ("index", "path", "message"),
    [
        (0, "mini.ninfer", "files[0].path: 'mini.ninfer', expected null for the entry file"),
        (1, "../part", "files[1].path: '../part' is not a plain sibling file name"),
        (1, "a\\b", "is not a plain sibling file name"),
        (1, "/etc/passwd", "files[1].path: '/etc/passwd' is not a plain sibling file name"),
        (1, ".", "files[1].path: '.' is not a plain sibling file name"),
        (1, "..", "files[1].path: '..' is not a plain sibling file name"),
        (1, "", "files[1].path: empty string"),
        (1, "a\0", "files[1].path: 'a\\x00' holds a NUL character"),
        (1, None, "files[1].path: expected a string, got null"),
        (1, "mini.ninfer", "files[1].path: 'mini.ninfer' is the entry file itself or occurs twice"),
        (2, "mini.ninfer.part-0001", "files[2].path: 'mini.ninfer.part-0001' is the entry file"),
    ],
)
def test_18_part_paths(minis, index, path, message):
    document = minis.document(3)
    names = [None, "mini.ninfer.part-0001", "mini.ninfer.part-0002"]
    names[index] = path
    sizes = [4096, 128, 128]
    document["files"] = [
        {"path": name, "payload_bytes": size} for name, size in zip(names, sizes, strict=True)
    ]
    refuses(minis.write_version(3, document), message)


def test_18_payload_sizes_do_not_overflow(minis):
    document = minis.document(3)
    document["files"] += [{"path": "a", "payload_bytes": (1 << 64) - 1}]
    refuses(minis.write_version(3, document), "payload sizes add up beyond 2^64-1 bytes")


def parts(object_id, begin, end):
    return {"parts": [{"object": object_id, "range": [begin, end]}]}


RESOURCE = "resource/text/tokenizer.json"


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ({"object": "nothing"}, "binding 'text/a': no object 'nothing'"),
        ({"object": RESOURCE}, "object 'resource/text/tokenizer.json' is a resource, expected a"),
        (parts("nothing", 0, 1), "binding 'text/a'.parts[0]: no object 'nothing'"),
        (parts(RESOURCE, 0, 1), "is a resource, expected a tensor"),
        (parts("weight/000000", 5, 5), "range [5, 5) is empty, reversed or beyond the 2048 elem"),
        (parts("weight/000000", 6, 5), "range [6, 5) is empty, reversed or beyond"),
        (parts("weight/000000", 0, 2049), "range [0, 2049) is empty, reversed or beyond the 2048"),
        (parts("weight/000000", -1, 5), ".range: -1 is outside 0..2^64-1"),
        ({"parts": []}, "binding 'text/a'.parts: empty, expected at least 1 entry"),
        ({}, "binding 'text/a': expected exactly one of 'object' and 'parts'"),
        ({"object": "weight/000000", "parts": []}, "expected exactly one of 'object' and 'parts'"),
        ({"object": "weight/000000", "rows": 1}, "binding 'text/a': unexpected member 'rows'"),
        ({"parts": [{"object": "weight/000000"}]}, "parts[0]: missing member 'range'"),
        (
            {"parts": [{"object": "weight/000000", "range": [1]}]},
            "parts[0].range: 1 entries, expected [begin, end]",
        ),
        (None, "binding 'text/a': expected an object, got null"),
    ],
)
def test_19_bindings(minis, binding, message):
    document = minis.document(3)
    document["bindings"]["text/a"] = binding
    refuses(minis.write_version(3, document), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameter": "text/c"}, "use text/c@text/in: parameter 'text/c' has no binding"),
        ({"input": ""}, "uses[0].input: empty string"),
        ({"activation_policy": "A2"}, "use text/b@text/in: unknown activation_policy 'A2', expec"),
        ({"activation_policy": 16}, "uses[0].activation_policy: expected a string, got integer"),
        ({"auxiliaries": []}, "uses[0].auxiliaries: expected an object, got array"),
        (
            {"auxiliaries": {"activation_input_divisor": {"object": "nothing"}}},
            "use text/b@text/in.activation_input_divisor: no object 'nothing'",
        ),
    ],
)
def test_20_uses(minis, changes, message):
    document = minis.document(3)
    document["uses"][0].update(changes)
    refuses(minis.write_version(3, document), message)


def test_20_a_use_occurs_once(minis):
    document = minis.document(3)
    document["uses"] *= 2
    refuses(minis.write_version(3, document), "use text/b@text/in: occurs twice")


@pytest.mark.parametrize(
    ("component", "changes", "message"),
    [
        ("mtp", {"target": "audio"}, "component 'mtp': target 'audio' is not a component"),
        ("mtp", {"proposal": {"domain": "full"}}, "'proposal' is allowed in 'text' only"),
        (
            "text",
            {"resources": {"a": "nothing"}},
            "component 'text'.resources: role 'a': object 'nothing' does not exist",
        ),
        (
            "text",
            {"resources": {"a": "weight/000000"}},
            "role 'a': object 'weight/000000' is a tensor, expected a resource",
        ),
        ("text", {"resources": {"a": 1}}, "component 'text'.resources.a: expected a string"),
        (
            "text",
            {"proposal": {"domain": "some"}},
            "component 'text'.proposal: unknown domain 'some', expected 'full' or 'indexed'",
        ),
        ("text", {"proposal": {"domain": "full", "rows": 1}}, "domain 'full' takes no 'rows'"),
        ("text", {"proposal": {"domain": "indexed"}}, "domain 'indexed' needs 'rows'"),
        ("text", {"proposal": {"domain": "indexed", "rows": 0}}, "proposal.rows: 0 is outside 1"),
        ("text", {"proposal": {"rows": 1}}, "component 'text'.proposal: missing member 'domain'"),
        ("text", {"proposal": {"domain": "full", "x": 1}}, "unexpected member 'x'"),
    ],
)
def test_21_components(minis, component, changes, message):
    document = minis.document(3)
    document["components"].setdefault(component, {"config": {}}).update(changes)
    refuses(minis.write_version(3, document), message)


def test_22_short_read_in_a_part(minis):
    entry, part = minis.write_split()
    artifact = open_artifact(entry)
    artifact.open_all_files()
    part.write_bytes(part.read_bytes()[:4100])
    with pytest.raises(ArtifactError, match="short read at 4096: wanted 256 bytes, got 4"):
        artifact.parameter("text/b").words()
