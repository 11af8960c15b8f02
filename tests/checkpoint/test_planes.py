"""Planes of stored objects: types, blocks, and the way back word for word."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.artifact import TensorObject, encoded_bytes
from ninfer_jax.artifact.formats import FORMATS
from ninfer_jax.checkpoint import planes as planes_module
from ninfer_jax.checkpoint.planes import blocks, payload_chunks, plane_offsets, plane_spec, planes
from tests.checkpoint.every_format import SHAPES, payload

CASES = [(format, shape) for format, shapes in SHAPES.items() for shape in shapes]


def stored_object(format: str, shape: tuple[int, ...]) -> TensorObject:
    size = encoded_bytes(format, shape)
    return TensorObject("w", shape, format, FORMATS[format].layout, 0, size)


@pytest.mark.parametrize("block_bytes", [1, 20_000, 1 << 30])
@pytest.mark.parametrize(("format", "shape"), CASES, ids=str)
def test_the_way_back_gives_every_byte(monkeypatch, format, shape, block_bytes):
    monkeypatch.setattr(planes_module, "BLOCK_BYTES", block_bytes)
    stored = stored_object(format, shape)
    words = np.frombuffer(payload(format, shape, 7), np.uint8)
    parts = [planes(stored, words, begin, end) for begin, end in blocks(stored)]
    for (begin, end), part in zip(blocks(stored), parts, strict=True):
        found = {name: (plane.shape, plane.dtype) for name, plane in part.items()}
        assert found == plane_spec(stored, end - begin)
    np.testing.assert_array_equal(np.concatenate(list(payload_chunks(stored, parts))), words)


@pytest.mark.parametrize(("format", "shape"), CASES, ids=str)
def test_planes_fill_the_payload(format, shape):
    stored = stored_object(format, shape)
    name, offset = list(plane_offsets(stored).items())[-1]
    dims, dtype = plane_spec(stored, shape[0] if shape else 1)[name]
    assert offset + int(np.prod(dims)) * dtype.itemsize == stored.bytes


def test_large_objects_are_cut_at_tiles():
    stored = stored_object("fp8_e4m3fn_row_bf16", (248320, 5120))
    cuts = blocks(stored)
    assert len(cuts) == 5 and cuts[0] == (0, 52352) and cuts[-1][1] == 248320
    assert all(begin % 128 == 0 for begin, _ in cuts)
    assert all((end - begin) * 5122 <= planes_module.BLOCK_BYTES for begin, end in cuts)


def test_scales_stand_in_natural_order():
    """Row 200, block 6 of [256, 128]: at 1024 + 512 + 128 + 8 + 2 of the scale plane."""
    stored = stored_object("nvfp4", (256, 128))
    words = np.zeros(stored.bytes, np.uint8)
    words[256 * 64 + 1674] = 0x38
    scales = planes(stored, words, 0, 256)["scales"]
    assert scales.dtype == ml_dtypes.float8_e4m3fn
    assert np.argwhere(scales != 0).tolist() == [[200, 6]] and scales[200, 6] == 1.0
