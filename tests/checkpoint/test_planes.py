"""Planes of stored objects: types, blocks, and the way back word for word."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.artifact import encoded_bytes
from ninfer_jax.checkpoint import planes as planes_module
from ninfer_jax.checkpoint.planes import payload_chunks, plane_offsets, plane_spec, planes
from tests.checkpoint.every_format import SHAPES, payload

CASES = [(format, shape) for format, shapes in SHAPES.items() for shape in shapes]


@pytest.mark.parametrize("chunk_bytes", [1000, 1 << 30])
@pytest.mark.parametrize(("format", "shape"), CASES, ids=str)
def test_the_way_back_gives_every_byte(monkeypatch, format, shape, chunk_bytes):
    monkeypatch.setattr(planes_module, "CHUNK_BYTES", chunk_bytes)
    words = np.frombuffer(payload(format, shape, 7), np.uint8)
    part = planes(format, shape, words)
    found = {name: (plane.shape, plane.dtype) for name, plane in part.items()}
    assert found == plane_spec(format, shape)
    chunks = list(payload_chunks(format, shape, [part]))
    assert all(chunk.size <= chunk_bytes for chunk in chunks)
    np.testing.assert_array_equal(np.concatenate(chunks), words)


@pytest.mark.parametrize(("format", "shape"), CASES, ids=str)
def test_planes_fill_the_payload(format, shape):
    assert max(end for _, end in plane_offsets(format, shape).values()) == encoded_bytes(
        format, shape
    )


@pytest.mark.parametrize(("format", "shape"), CASES, ids=str)
def test_only_nvfp4_scales_are_copied(format, shape):
    words = np.frombuffer(payload(format, shape, 7), np.uint8)
    copied = {
        name for name, x in planes(format, shape, words).items() if not np.shares_memory(x, words)
    }
    assert copied == ({"scales"} if format == "nvfp4" else set())


@pytest.mark.parametrize(("format", "shape"), [case for case in CASES if len(case[1]) == 2])
def test_blocks_of_rows_give_the_same_payload(format, shape):
    whole = planes(format, shape, np.frombuffer(payload(format, shape, 3), np.uint8))
    cuts = [
        {
            name: plane if not plane.shape else plane[begin : begin + 128]
            for name, plane in whole.items()
        }
        for begin in range(0, shape[0], 128)
    ]
    found = np.concatenate(list(payload_chunks(format, shape, cuts)))
    assert found.tobytes() == payload(format, shape, 3)


def test_scales_stand_in_natural_order():
    """Row 200, block 6 of [256, 128]: at 1024 + 512 + 128 + 8 + 2 of the scale plane."""
    words = np.zeros(encoded_bytes("nvfp4", (256, 128)), np.uint8)
    words[256 * 64 + 1674] = 0x38
    scales = planes("nvfp4", (256, 128), words)["scales"]
    assert scales.dtype == ml_dtypes.float8_e4m3fn
    assert np.argwhere(scales != 0).tolist() == [[200, 6]] and scales[200, 6] == 1.0
