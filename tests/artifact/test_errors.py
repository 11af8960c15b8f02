"""Every way in which a file can be malformed, and what the message says.

The numbers are those of the error list of the format; what only version 3 has is in
`test_errors_version_3.py`.
Each case edits a published vector.
"""

from __future__ import annotations

import struct

import pytest

from ninfer_jax.artifact import open_artifact
from ninfer_jax.artifact.framing import MAXIMUM_DIRECTORY_BYTES
from ninfer_jax.artifact.reader import open_container
from ninfer_jax.errors import ArtifactError


def refuses(path, message):
    with pytest.raises(ArtifactError) as caught:
        open_container(path)
    assert message in caught.value.message
    assert caught.value.message.startswith("mini.ninfer: ")
    assert "\n" not in caught.value.message
    with pytest.raises(ArtifactError):
        open_artifact(path)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_1_truncated_header(minis, version):
    refuses(minis.write(minis.entry(version)[:15]), "truncated header, the file has 15 bytes")
    refuses(minis.write(b""), "truncated header, the file has 0 bytes")
    if version == 3:
        refuses(
            minis.write(minis.entry(3)[:31]),
            "truncated header, the file has 31 bytes, expected at least 32",
        )


@pytest.mark.parametrize(
    ("magic", "message"),
    [
        (b"NINFER\0\4", "unsupported container version 4, expected 1, 2 or 3"),
        (b"NINFER\0\0", "unsupported container version 0, expected 1, 2 or 3"),
        (b"NINPRT\0\2", "unsupported container version 2"),
        (b"NINFERX\3", "not a .ninfer file (first bytes 4e 49 4e 46 45 52 58 03)"),
        (b"GGUF\3\0\0\0", "not a .ninfer file"),
        (b"NINPRT\0\3", "a continuation file; open the entry file instead"),
    ],
)
def test_2_and_3_magic(minis, magic, message):
    refuses(minis.write(magic + minis.entry(3)[8:]), message)


def test_missing_and_special_files(minis, tmp_path):
    with pytest.raises(ArtifactError, match=r"nothing: cannot open .*No such file"):
        open_artifact(tmp_path / "nothing")
    with pytest.raises(ArtifactError, match="not a regular file"):
        open_artifact(tmp_path)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("json_bytes", "message"),
    [
        (0, "the directory has 0 bytes"),
        (1 << 63, "a directory of 9223372036854775808 bytes does not fit a file of"),
        ((1 << 64) - 1, "does not fit a file of"),
    ],
)
def test_4_directory_length(minis, version, json_bytes, message):
    content = bytearray(minis.entry(version))
    content[8:16] = struct.pack("<Q", json_bytes)
    refuses(minis.write(bytes(content)), message)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_4_payload_start_beyond_the_file(minis, version):
    content = minis.entry(version)[:4000]
    refuses(minis.write(content), "the payload starts at 4096, beyond the end of the file at 4000")


def test_4_a_directory_may_not_be_huge(minis):
    path = minis.write(minis.entry(3)[:8] + struct.pack("<Q", MAXIMUM_DIRECTORY_BYTES + 1))
    with open(path, "r+b") as file:
        file.truncate(2 * MAXIMUM_DIRECTORY_BYTES)
    refuses(path, "bytes, at most 67108864 is accepted")


def replaced(minis, version, old, new):
    text = minis.text(version)
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"tokenizer", b"token\xffzer", "directory: not UTF-8 at byte "),
        (b'"offset":0', b'"offset":', "directory: not JSON at character "),
        (b'"offset":0', b'"offset":0,"offset":0', "directory: duplicate member 'offset'"),
        (b'"offset":0', b'"offset":NaN', "directory: NaN is not a JSON number"),
        (b'"offset":0', b'"offset":-Infinity', "directory: -Infinity is not a JSON number"),
        (b'"offset":0', b'"offset":1e999', "directory: number 1e999 is beyond binary64"),
        (b'"offset":0', b'"offset":' + b"9" * 5000, "directory: an integer of 5000 digits"),
        (b'"offset":0', b'"offset":' + b"[" * 70 + b"]" * 70, "directory: nested 7"),
        (b'"offset":0', b'"offset":' + b'{"a":' * 100_000, "directory: nested 100"),
        (b'"offset":0', b'"offset":0.0', ".offset: expected an integer, got number"),
        (b'"offset":0', b'"offset":true', ".offset: expected an integer, got boolean"),
        (b'"offset":0', b'"offset":null', ".offset: expected an integer, got null"),
        (b'"offset":0', b'"offset":"0"', ".offset: expected an integer, got string"),
        (b'"offset":0', b'"offset":-1', ".offset: -1 is outside 0..2^64-1"),
        (
            b'"offset":0',
            b'"offset":18446744073709551616',
            ".offset: 18446744073709551616 is outside 0..2^64-1",
        ),
        (b'"bytes":2}', b'"bytes":0}', ".bytes: 0 is outside 1..2^64-1"),
        (b'"offset":0,', b"", "objects[0]: missing member 'offset'"),
        (b'"offset":0', b'"offset":0,"color":1', "objects[0]: unexpected member 'color', expected"),
        (b'"shape":[2', b'"shape":[0,2', ".shape: 0 is outside 1..2^64-1"),
        (b'"shape":[2', b'"shape":[1.5,2', ".shape: expected an integer, got number"),
        (b'"shape":[2', b'"shape":[' + b"1," * 16 + b"2", ".shape: rank 17, at most 16"),
        (
            b'"shape":[2',
            b'"shape":[4294967296,4294967296,2',
            "holds more than 2^64-1 elements",
        ),
        (b'"kind":"resource"', b'"kind":"blob"', "objects[0]: unknown kind 'blob', expected"),
        (b'"kind":"resource"', b'"kind":[]', "objects[0]: unknown kind '[]', expected"),
        (b'"kind":"resource",', b"", "objects[0]: missing member 'kind'"),
    ],
)  # fmt: skip
def test_5_to_11_text_members_types_and_order(minis, version, old, new, message):
    refuses(minis.write(minis.entry(version, replaced(minis, version, old, new))), message)


@pytest.mark.parametrize(
    ("version", "edit", "message"),
    [
        (1, lambda d: d.pop("model_id"), "directory: missing member 'model_id'"),
        (1, lambda d: d.update(identity={}), "directory: unexpected member 'identity'"),
        (1, lambda d: d.update(model_id=""), "directory.model_id: empty string"),
        (2, lambda d: d["identity"].pop("weights_id"), "missing member 'weights_id'"),
        (2, lambda d: d["identity"].update(more=1), "directory.identity: unexpected member 'more'"),
        (2, lambda d: d.update(identity=None), "directory.identity: expected an object, got null"),
        (2, lambda d: d["objects"][1].update(name=""), "objects[1].name: empty string"),
        (2, lambda d: d["objects"][1].update(name="a\0"), "holds a NUL character"),
        (1, lambda d: d.update(objects=[]), "directory.objects: empty, expected at least 1 entry"),
        (1, lambda d: d.update(objects={}), "directory.objects: expected an array, got object"),
        (2, lambda d: d["objects"].append([]), "objects[3]: expected an object, got array"),
        (
            2,
            lambda d: d["objects"][2].update(name="direct/bf16"),
            "objects[2]: duplicate name 'direct/bf16'",
        ),
        (3, lambda d: d.pop("uses"), "directory: missing member 'uses'"),
        (3, lambda d: d.update(extra=1), "directory: unexpected member 'extra', expected"),
        (3, lambda d: d.update(objects=[]), "directory.objects: empty"),
        (3, lambda d: d.update(files=[]), "directory.files: empty"),
        (3, lambda d: d.update(components={}), "components: missing 'text'"),
        (3, lambda d: d.update(components=[]), "directory.components: expected an object"),
        (3, lambda d: d.update(metadata=[]), "directory.metadata: expected an object, got array"),
        (3, lambda d: d.update(metadata={"name": ""}), "directory.metadata.name: empty string"),
        (3, lambda d: d.update(metadata={"name": 3}), "metadata.name: expected a string, got int"),
        (3, lambda d: d.update(provenance=1), "directory.provenance: expected an object"),
        (3, lambda d: d["objects"][1].update(id=""), "objects[1].id: empty string"),
        (3, lambda d: d["objects"][1].update(id="a\0b"), r"'a\x00b' holds a NUL character"),
        (
            3,
            lambda d: d["objects"][1].update(id="resource/text/tokenizer.json"),
            "objects[1]: duplicate id 'resource/text/tokenizer.json'",
        ),
        (3, lambda d: d["components"]["text"].update(more=1), "component 'text': unexpected mem"),
        (3, lambda d: d["components"]["text"].pop("config"), "missing member 'config'"),
        (
            3,
            lambda d: d["components"]["text"].update(config=[]),
            "component 'text'.config: expected an object, got array",
        ),
        (3, lambda d: d["uses"][0].update(more=1), "uses[0]: unexpected member 'more'"),
        (3, lambda d: d["uses"][0].pop("input"), "uses[0]: missing member 'input'"),
        (3, lambda d: d["files"][0].update(more=1), "files[0]: unexpected member 'more'"),
        (3, lambda d: d["files"][0].update(payload_bytes=0), "files[0].payload_bytes: 0 is out"),
    ],
)
def test_6_to_10_records(minis, version, edit, message):
    document = minis.document(version)
    edit(document)
    refuses(minis.write_version(version, document), message)


def test_7_lone_surrogates(minis):
    text = replaced(minis, 3, b"weight/000000", b"weight/\\ud800")
    refuses(minis.write(minis.entry(3, text)), r"'weight/\ud800' holds a lone surrogate")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (2, {"bytes": 1 << 40}, "object 'quant/q4': 1099511627776 bytes stored, expected 260"),
        (1, {"offset": 300}, "object 'direct/bf16': offset 300 is not a multiple of 256"),
        (1, {"format": "BF17"}, "object 'direct/bf16': unknown format 'BF17' in version"),
        (1, {"format": "bf16"}, "unknown format 'bf16' in version"),
        (1, {"layout": "row-scale-v1"}, "layout 'row-scale-v1' is not that of format 'BF16'"),
        (0, {"encoding": "gzip"}, "unknown encoding 'gzip', expected 'raw-bytes-v1'"),
        (2, {"shape": [65]}, "object 'quant/q4': q4_g64_fp16: rank 1, expected a matrix [N, K]"),
        (1, {"bytes": 6}, "object 'direct/bf16': 6 bytes stored, expected 4 for bf16 [2]"),
        (
            1,
            {"shape": [1 << 40], "bytes": 1 << 41},
            "truncated file: object 'direct/bf16' ends at 2199023255808, the payload at 772",
        ),
    ],
)
def test_12_to_15_objects_of_versions_1_and_2(minis, version, index, changes, message):
    document = minis.document(version)
    document["objects"][index].update(changes)
    refuses(minis.write_version(version, document), message)


def test_11_overlapping_objects(minis):
    document = minis.document(1)
    document["objects"][2]["offset"] = 256
    message = "object 'quant/q4': offset 256 is before 260, the end of the previous object"
    refuses(minis.write_version(1, document), message)
    document = minis.document(3)
    document["objects"][1]["offset"] = 1
    message = "object 'weight/000000': offset 1 is before 2, the end of the previous object"
    refuses(minis.write_version(3, document), message)


def test_12_truncated_legacy_file(minis):
    refuses(
        minis.write(minis.entry(2)[:-1]),
        "truncated file: object 'quant/q4' ends at 772, the payload at 771",
    )


def test_14_formats_that_version_1_does_not_know(minis):
    document = minis.document(1)
    document["objects"][1].update(format="NVFP4", layout="blockscale-k16-m128x4-v1")
    refuses(minis.write_version(1, document), "unknown format 'NVFP4' in version 1, expected one")


def test_14_shapes_that_nvfp4_tiles_do_not_divide(minis):
    document = minis.document(2)
    document["objects"][2].update(format="NVFP4", layout="blockscale-k16-m128x4-v1", shape=[64, 64])
    refuses(
        minis.write_version(2, document),
        "object 'quant/q4': nvfp4: shape [64, 64], expected rows in multiples of 128",
    )


@pytest.mark.parametrize("version", [1, 2])
def test_23_identity_of_the_vectors_is_unknown(minis, version):
    with pytest.raises(ArtifactError, match=r"mini.ninfer: unknown identity 'test-model"):
        open_artifact(minis.write_version(version))
