"""Any bytes either open or raise `ArtifactError`: no crash, no hang, no memory to order."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_jax.artifact import open_artifact
from ninfer_jax.artifact.directory import TensorObject
from ninfer_jax.artifact.reader import open_container
from ninfer_jax.artifact.strict_json import parse_json
from ninfer_jax.artifact.verify import verify_artifact
from ninfer_jax.errors import ArtifactError

SHORT = settings(
    max_examples=150,
    deadline=2000,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LONG = settings(SHORT, max_examples=3000)
MEMORY = 16 << 20


def read_everything(path: Path) -> None:
    """Open a file and touch every part of it; only `ArtifactError` may escape."""
    try:
        container = open_container(path)
    except ArtifactError:
        return
    for stored in container.directory.objects.values():
        container.payload.read(stored.offset, stored.bytes)
    try:
        artifact = open_artifact(path)
    except ArtifactError:
        return
    for name in artifact.bindings:
        try:
            # Four-bit codes widen eightfold; nothing may grow by more.
            assert artifact.parameter(name).decode().nbytes <= 8 * container.size_bytes
        except ArtifactError as error:
            assert "\n" not in error.message
    list(verify_artifact(artifact))


@pytest.fixture
def traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


EDIT = st.tuples(st.integers(0, 900), st.binary(min_size=1, max_size=8))
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["bf16", "fp32", "nvfp4", "q5_g64_fp16", "fp8_e4m3fn_row_bf16"]),
    st.sampled_from(["block_scale_k16_m128x4_v1", "row_split_k128_v1", "row_scale_v1"]),
    st.lists(st.integers(0, 1 << 40), max_size=5),
    st.just({}),
)


def slots(node, found=None):
    """List every (container, key) of a document."""
    found = [] if found is None else found
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        found.append((node, key))
        if isinstance(node[key], (dict, list)):
            slots(node[key], found)
    return found


def overwritten(minis, version, edits) -> bytes:
    content = bytearray(minis.entry(version))
    for offset, data in edits:
        content[offset : offset + len(data)] = data
    return bytes(content)


def truncated(minis, version, length) -> bytes:
    return minis.entry(version)[:length]


def directory_with_bytes_inserted(minis, version, insertion) -> bytes:
    cut, data = insertion
    text = minis.text(version)
    cut = min(cut, len(text))
    return minis.entry(version, text[:cut] + data + text[cut:])


def values_replaced(minis, version, picks) -> bytes:
    document = minis.document(version)
    for index, value in picks:
        places = slots(document)
        node, key = places[index % len(places)]
        node[key] = value
    return minis.entry(version, json.dumps(document, ensure_ascii=True).encode())


DAMAGE = {
    overwritten: st.lists(EDIT, min_size=1, max_size=3),
    truncated: st.integers(0, 9000),
    directory_with_bytes_inserted: st.tuples(st.integers(0, 700), st.binary(max_size=64)),
    values_replaced: st.lists(st.tuples(st.integers(0, 1000), VALUES), min_size=1, max_size=3),
}
KINDS = pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)


@KINDS
@SHORT
@given(version=st.sampled_from([1, 2, 3]), data=st.data())
def test_damaged_files(minis, damage, version, data):
    read_everything(minis.write(damage(minis, version, data.draw(DAMAGE[damage]))))


@pytest.mark.slow
@KINDS
@LONG
@given(version=st.sampled_from([1, 2, 3]), data=st.data())
def test_many_damaged_files(minis, damage, version, data):
    read_everything(minis.write(damage(minis, version, data.draw(DAMAGE[damage]))))


@SHORT
@given(data=st.binary(max_size=200))
def test_json_of_any_bytes(data):
    try:
        parse_json(data, "x")
    except ArtifactError as error:
        assert error.message.startswith("x: ")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 2_000_000,
        b'{"a":' * 500_000,
        b'"' + b'\\"' * 1_000_000,
        b'["' + b"\\" * 2_000_001,
        b"[" + b"1" * 2_000_000 + b"]",
        b"[1e" + b"9" * 2_000_000 + b"]",
        b"[" + b"]," * 1_000_000,
    ],
)
def test_hostile_json_is_refused_in_linear_time(text):
    with pytest.raises(ArtifactError):
        parse_json(text, "x")


def test_a_huge_shape_costs_nothing(minis, traced):
    for format, layout in (
        ("bf16", "contiguous_le_v1"),
        ("q6_g64_fp16", "row_split_k128_v1"),
        ("nvfp4", "block_scale_k16_m128x4_v1"),
        ("fp8_e4m3fn_row_bf16", "row_scale_v1"),
    ):
        document = minis.document(3)
        document["objects"][1].update(format=format, layout=layout, shape=[1 << 31, 1 << 31])
        artifact = open_artifact(minis.write_version(3, document))
        stored = artifact.objects["weight/000000"]
        assert isinstance(stored, TensorObject) and stored.elements == 1 << 62
        tracemalloc.reset_peak()
        with pytest.raises(ArtifactError, match="4096 bytes stored, expected "):
            artifact.parameter("text/a", (1024,))
        assert tracemalloc.get_traced_memory()[1] < MEMORY
