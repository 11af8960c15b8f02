"""Byte placement: sizes, the worked examples, round trips, row slices."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ninfer_jax.artifact import (
    decode_fields,
    encode_fp8_rows,
    encode_grouped,
    encode_nvfp4,
    encoded_bytes,
    pack_object,
    unpack_object,
)
from ninfer_jax.artifact.block_scale import swizzle, unswizzle
from ninfer_jax.artifact.codecs import unpack_elements
from ninfer_jax.artifact.direct import bfloat16_values, bfloat16_words
from ninfer_jax.artifact.formats import FORMATS, FP8, GROUPED_FORMATS
from ninfer_jax.artifact.row_split import geometry
from ninfer_jax.errors import ArtifactError

Q4, Q5, Q6, Q8 = GROUPED_FORMATS
PACKED = (*GROUPED_FORMATS, FP8, "nvfp4")


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def random_fields(format: str, shape: tuple[int, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Any legal words, not only those an encoder produces."""
    generator = np.random.default_rng(seed)
    rows, columns = shape
    if format == FP8:
        codes = generator.integers(0, 256, shape, dtype=np.uint8)
        return {"codes": codes, "scales": generator.integers(0, 0x7F80, rows, dtype=np.uint16)}
    if format == "nvfp4":
        return {
            "codes": generator.integers(0, 256, (rows, columns // 2), dtype=np.uint8),
            "scales": generator.integers(0, 0x7F, (rows, columns // 16), dtype=np.uint8),
            "divisor": np.float32(3.25),
        }
    bits, group = {Q4: (4, 64), Q5: (5, 64), Q6: (6, 64), Q8: (8, 32)}[format]
    low = -127 if bits == 8 else -(1 << bits - 1)
    return {
        "codes": generator.integers(low, 1 << bits - 1, shape, dtype=np.int8),
        "scales": generator.integers(0, 0x7C00, (rows, -(-columns // group)), dtype=np.uint16),
    }


@pytest.mark.parametrize(
    ("format", "shape", "expected"),
    [
        (FP8, (248320, 5120), 1_271_895_040),
        (FP8, (34816, 5120), 178_327_552),
        (FP8, (16384, 5120), 83_918_848),
        (FP8, (14336, 5120), 73_428_992),
        (FP8, (5120, 17408), 89_139_200),
        (FP8, (5120, 6144), 31_467_520),
        ("nvfp4", (34816, 5120), 100_270_084),
        ("nvfp4", (5120, 17408), 50_135_044),
        ("nvfp4", (14336, 5120), 41_287_684),
        (Q4, (131072, 5120), 356_515_840),
        (Q4, (34816, 5120), 94_699_520),
        (Q4, (7168, 5120), 19_496_960),
        (Q4, (4096, 5120), 11_141_120),
        (Q4, (4304, 1152), 2_634_048),
        (Q4, (3456, 1152), 2_115_072),
        (Q6, (1152, 1536), 1_382_400),
        (Q6, (248320, 5120), 993_280_000),
        (Q8, (248320, 5120), 1_350_860_800),
        (Q8, (34816, 5120), 189_399_040),
        (Q8, (14336, 5120), 77_987_840),
        (Q8, (6144, 5120), 33_423_360),
        (Q8, (5120, 25600), 139_264_000),
        (Q8, (5120, 17408), 94_699_520),
        (Q8, (5120, 10240), 55_705_600),
        (Q8, (5120, 6144), 33_423_360),
        (Q8, (5120, 4608), 25_067_520),
        (Q8, (5120, 4096), 22_282_240),
        (Q8, (4608, 4608), 22_560_768),
        (Q5, (12288, 5120), 41_287_680),
        (Q5, (7168, 5120), 24_084_480),
        (Q5, (5120, 17408), 58_490_880),
        (Q5, (5120, 6144), 20_643_840),
        (Q5, (1152, 4304), 3_290_112),
        (Q5, (1152, 1152), 870_912),
        ("fp32", (), 4),
        ("bf16", (2, 2, 5120), 40_960),
    ],
)
def test_encoded_sizes(format, shape, expected):
    assert encoded_bytes(format, shape) == expected


def test_e1_direct_words():
    words = np.array([0x0000, 0x8000, 0x0001, 0x7FC1], np.uint16)
    assert pack_object("bf16", {"words": words}, (4,)).hex(" ") == "00 00 00 80 01 00 c1 7f"
    quiet = np.array(0x7FC01234, np.uint32).view(np.float32)
    assert pack_object("fp32", {"words": quiet}, ()).hex(" ") == "34 12 c0 7f"
    assert pack_object("int32", {"words": np.array([-1], np.int32)}, (1,)).hex() == "ffffffff"


def test_e2_geometry():
    q5 = geometry(Q5, (2, 130))
    assert (q5.padded_columns, q5.groups, q5.base_row * 2, q5.high_row * 2) == (256, 4, 256, 64)
    assert (q5.high_offset, q5.scale_offset, q5.total) == (256, 512, 528)
    q4, q8 = geometry(Q4, (1, 4304)), geometry(Q8, (1, 4304))
    assert (q4.padded_columns, q4.groups, q4.base_row) == (4352, 68, 2176)
    assert (q8.groups, q8.base_row) == (136, 4352)


@pytest.mark.parametrize(
    ("format", "columns", "codes", "base", "high", "scale_offset", "size"),
    [
        (Q4, 65, [-8, -7, -1, 0, 1, 7], "98 0f 71", "", 256, 260),
        (Q5, 130, [-16, -15, -1, 0, 1, 15], "10 0f f1", "07", 512, 520),
        (Q6, 65, [-32, -31, -17, -16, -1, 0, 15, 31], "10 0f 0f ff", "ea 43", 512, 516),
        (Q8, 33, [-127, -1, 0, 1, 127], "81 ff 00 01 7f", "", 256, 264),
    ],
)
def test_e3_packed_prefixes(format, columns, codes, base, high, scale_offset, size):
    row = np.zeros((1, columns), np.int8)
    row[0, : len(codes)] = codes
    groups = -(-columns // (32 if format == Q8 else 64))
    scales = np.zeros((1, groups), np.uint16)
    scales[0, :2] = 0x3E00, 0x3400
    payload = pack_object(format, {"codes": row, "scales": scales}, (1, columns))
    assert len(payload) == size
    assert payload.hex(" ").startswith(base)
    assert payload[256:].hex(" ").startswith(high)
    assert payload[scale_offset : scale_offset + 4].hex(" ") == "00 3e 00 34"
    assert not any(payload[scale_offset + 4 :])
    if format == Q4:
        assert digest(payload).startswith(
            "34f05f624a2ccb4df27a2480e758ee17e5fa8852084ef949a1faa9b2"
        )


def test_e4_fp8():
    codes = np.frombuffer(bytes.fromhex("008038b840c07efe"), np.uint8).reshape(2, 4)
    scales = np.array([0x3F00, 0x4000], np.uint16)
    payload = pack_object(FP8, {"codes": codes, "scales": scales}, (2, 4))
    assert len(payload) == 260 and payload[256:].hex(" ") == "00 3f 00 40"
    assert payload[:8] == codes.tobytes() and not any(payload[8:256])
    decoded = decode_fields(FP8, unpack_object(FP8, (2, 4), payload))
    assert decoded.tolist() == [[0, -0.0, 0.5, -0.5], [4, -4, 896, -896]]
    assert np.signbit(decoded[0, 1])


def counted_scales(rows: int, groups: int) -> np.ndarray:
    row, group = np.indices((rows, groups))
    return ((groups * row + group) % 127).astype(np.uint8)


def test_e5_nvfp4_tile():
    codes = (np.arange(4096) % 256).astype(np.uint8)
    codes[0] = 0x10
    fields = {
        "codes": codes.reshape(128, 32),
        "scales": counted_scales(128, 4),
        "divisor": np.float32(2.5),
    }
    payload = pack_object("nvfp4", fields, (128, 64))
    assert len(payload) == 4612 and payload[-4:].hex(" ") == "00 00 20 40"
    assert payload[4096:4120].hex(" ") == (
        "00 01 02 03 01 02 03 04 02 03 04 05 03 04 05 06 04 05 06 07 05 06 07 08"
    )
    assert digest(payload) == "ed8a127bc075654e3acbda5d7c66fff8647c48022d75a78a1dc72bef67780207"


def test_e6_nvfp4_tiles_decode():
    codes = ((7 * np.arange(256 * 64) + 3) % 256).astype(np.uint8).reshape(256, 64)
    fields = {"codes": codes, "scales": counted_scales(256, 8), "divisor": np.float32(3)}
    payload = pack_object("nvfp4", fields, (256, 128))
    assert len(payload) == 18436
    assert digest(payload) == "094d5f53177b82afced78891b89205242db6542a7eed43516df9445d9d7024c7"
    decoded = decode_fields("nvfp4", unpack_object("nvfp4", (256, 128), payload))
    assert decoded[1, 17] == -0.03515625
    assert float(decoded[130, 100]) == 0.01822916604578495
    assert decoded[255, 127] == -0.05859375


def test_swizzle_follows_the_formula():
    rows, groups = 384, 20
    scales = np.arange(rows * groups, dtype=np.uint32).reshape(rows, groups)
    plane = swizzle(scales)
    for n, g in np.ndindex(rows, groups):
        offset = (
            (n // 128) * (groups // 4) * 512
            + (g // 4) * 512
            + (n % 32) * 16
            + (n % 128 // 32) * 4
            + g % 4
        )
        assert plane[offset] == scales[n, g]
    assert (unswizzle(plane, rows, groups) == scales).all()
    expected = {(0, 0): 0, (31, 3): 499, (128, 0): 1024, (0, 3): 3, (32, 0): 4, (128, 4): 1536}
    expected |= {(0, 4): 512, (64, 5): 521, (200, 6): 1674, (1, 0): 16, (127, 7): 1023}
    plane = swizzle(np.arange(2048, dtype=np.uint32).reshape(256, 8))
    for (n, g), offset in (expected | {(255, 7): 2047}).items():
        assert plane[offset] == n * 8 + g


def numbered_matrix(shape: tuple[int, int]) -> np.ndarray:
    index = np.arange(shape[0] * shape[1], dtype=np.uint64)
    values = ((index * 2654435761 % 4093).astype(np.int64) - 2046) / 1024
    return bfloat16_values(bfloat16_words(values.astype(np.float32))).reshape(shape)


@pytest.mark.parametrize(
    ("format", "size", "first_scale", "expected"),
    [
        (Q4, 536, 0x3492, "e04d865af0872fe8056d0bcde88fb986dfcf50ad83baa7b67d0dc0fc843d735a"),
        (Q5, 792, 0x3044, "45c9b407de250f72ad0e22dc703c3562359ae9001810721b57276700e27c6a06"),
        (Q6, 792, 0x2C21, "d3a84a35b1b1e41d3c9f18682d669e1d80d5a802354c0c31029e52aec876b920"),
        (Q8, 816, 0x2408, "f7295f68f35e37ae54f33335749e5924cd8a586f40558f9e412c01b70a6870ad"),
        (FP8, 774, 0x3B92, "aacee924d6c51ee42af3179b8fdfdd6cad14e8323d76c7cb3399821e5d40fc90"),
    ],
)
def test_e11_encoded_matrices(format, size, first_scale, expected):
    values = numbered_matrix((3, 200))
    assert values[0, :4].tolist() == [-2.0, 0.4140625, -1.171875, 1.2421875]
    encoded = encode_fp8_rows(values) if format == FP8 else encode_grouped(values, format)
    fields = dict(zip(("codes", "scales"), encoded, strict=True))
    payload = pack_object(format, fields, (3, 200))
    assert len(payload) == size and digest(payload) == expected
    assert fields["scales"].reshape(-1)[0] == first_scale


def test_e11_encoded_nvfp4():
    codes, scales, divisor = encode_nvfp4(numbered_matrix((128, 64)))
    fields = {"codes": codes, "scales": scales, "divisor": divisor}
    payload = pack_object("nvfp4", fields, (128, 64))
    assert divisor == 1344.0 and len(payload) == 4612
    assert digest(payload) == "2a853d4004bd926d3c10de756c7e33effa390226aa2e198baf9b29a274e0b114"


@pytest.mark.parametrize("format", PACKED)
@pytest.mark.parametrize("columns", [64, 128, 320])
def test_round_trip_and_row_slices(format, columns):
    shape = (256, columns) if format == "nvfp4" else (7, columns + 3)
    fields = random_fields(format, shape)
    payload = pack_object(format, fields, shape)
    back = unpack_object(format, shape, payload)
    assert back.keys() == fields.keys()
    for name, field in fields.items():
        assert np.array_equal(back[name], field) and back[name].dtype == field.dtype
    width = shape[1]
    for begin, end in ((0, 1), (3, 6), (shape[0] - 1, shape[0])):
        part = unpack_elements(format, shape, payload, begin * width, end * width)
        for name, field in fields.items():
            expected = field if name == "divisor" else field[begin:end]
            assert np.array_equal(part[name], expected)
    assert pack_object(format, back, shape) == payload


@pytest.mark.parametrize("bits_and_format", [(4, Q4), (5, Q5), (6, Q6)])
def test_split_planes_against_a_bit_by_bit_reader(bits_and_format):
    bits, format = bits_and_format
    shape = (3, 150)
    fields = random_fields(format, shape, seed=4)
    payload = pack_object(format, fields, shape)
    planes = geometry(format, shape)
    for row, column in np.ndindex(*shape):
        group, lane = row * planes.groups + column // 64, column % 64
        byte = payload[group * 32 + lane // 2]
        word = byte >> 4 if lane % 2 else byte & 15
        for extra in range(bits - 4):
            bit = lane * (bits - 4) + extra
            start = planes.high_offset + group * 8 * (bits - 4)
            word |= (payload[start + bit // 8] >> bit % 8 & 1) << 4 + extra
        code = word if word < 1 << bits - 1 else word - (1 << bits)
        assert code == fields["codes"][row, column]


def test_padding_is_zero():
    fields = random_fields(Q8, (1, 33))
    payload = pack_object(Q8, fields, (1, 33))
    assert not any(payload[33:256]) and not any(payload[256 + 4 :])


@pytest.mark.parametrize(
    ("format", "shape", "message"),
    [
        ("nvfp4", (64, 64), "rows in multiples of 128 and columns in multiples of 64"),
        ("nvfp4", (128, 96), "columns in multiples of 64"),
        ("nvfp4", (128,), "rank 1, expected a matrix"),
        (FP8, (2, 2, 2), "rank 3, expected a matrix"),
        (Q4, (), "rank 0, expected a matrix"),
        ("bf16", (1,) * 17, "rank 17 is above 16"),
        ("q3", (1, 1), "unknown format 'q3', expected one of bf16"),
    ],
)
def test_shapes_that_cannot_be(format, shape, message):
    with pytest.raises(ArtifactError, match=message):
        encoded_bytes(format, shape)


def test_fields_that_do_not_fit_are_the_callers_fault():
    for format in PACKED:
        shape = (128, 64)
        fields = random_fields(format, shape)
        with pytest.raises(ValueError, match="codes are"):
            pack_object(format, fields | {"codes": fields["codes"][:1]}, shape)
        with pytest.raises(ValueError, match="scales are"):
            pack_object(format, fields | {"scales": fields["scales"][:1]}, shape)
    with pytest.raises(ValueError, match="words are"):
        pack_object("bf16", {"words": np.zeros(2, np.float32)}, (2,))
    with pytest.raises(ArtifactError, match="payload has 3 bytes, expected 4"):
        unpack_object("bf16", (2,), b"123")
    payload = pack_object(Q4, random_fields(Q4, (2, 64)), (2, 64))
    with pytest.raises(ArtifactError, match="do not begin and end at rows of 64 columns"):
        unpack_elements(Q4, (2, 64), payload, 1, 64)


def test_every_format_has_one_layout_and_two_spellings():
    assert len({entry.legacy_name for entry in FORMATS.values()}) == 9
    assert [entry.name for entry in FORMATS.values() if entry.since == 2] == ["nvfp4", FP8]
