"""Numeric formats against the published examples and against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ninfer_jax.artifact import (
    decode_fields,
    encode_direct,
    encode_fp8_rows,
    encode_grouped,
    encode_nvfp4,
    fuse_rows,
)
from ninfer_jax.artifact.direct import bfloat16_values, bfloat16_words
from ninfer_jax.artifact.fp8 import E4M3_VALUES, check_fp8, e4m3_words
from ninfer_jax.artifact.grouped import GROUPED, check_grouped
from ninfer_jax.artifact.nvfp4 import E2M1_VALUES, check_nvfp4
from ninfer_jax.errors import ArtifactError

# (precision, exponent of the smallest subnormal) of each binary format.
BINARY32, BINARY16, BFLOAT16, E4M3 = (24, -149), (11, -24), (8, -133), (4, -9)
GRID = [Fraction(value) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]


def rounded(value: Fraction, format: tuple[int, int]) -> Fraction:
    """Round once, to nearest, ties to even; no upper bound."""
    if value == 0:
        return value
    precision, smallest = format
    exponent = 0
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    quantum = Fraction(2) ** max(exponent - precision + 1, smallest)
    return round(value / quantum) * quantum


def row_of(values: list[float], width: int) -> np.ndarray:
    row = np.zeros((1, width), np.float32)
    row[0, : len(values)] = values
    return row


def grouped_row(values: np.ndarray, format: str) -> tuple[list[int], list[Fraction]]:
    constants = GROUPED[format]
    codes, scales = [], []
    for begin in range(0, values.size, constants.group):
        group = [Fraction(float(value)) for value in values[begin : begin + constants.group]]
        largest = max(abs(value) for value in group)
        if largest == 0:
            codes += [0] * len(group)
            scales.append(Fraction(0))
            continue
        scale = rounded(rounded(largest / constants.maximum, BINARY32), BINARY16)
        scale = scale or Fraction(1, 1 << 24)
        inverse = rounded(1 / scale, BINARY32)
        for value in group:
            code = round(rounded(value * inverse, BINARY32))
            codes.append(min(max(code, constants.minimum), constants.maximum))
        scales.append(scale)
    return codes, scales


def spread(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers times powers of two, with zeros and exact halves among them."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape) * np.exp2(generator.integers(-30, 6, (*shape[:1], 1)))
    values[generator.random(shape) < 0.1] = 0
    halves = generator.random(shape) < 0.2
    values[halves] = np.rint(values[halves] * 2) / 2
    return values.astype(np.float32)


@pytest.mark.parametrize("format", GROUPED)
def test_grouped_encoder_agrees_with_exact_arithmetic(format):
    values = spread(1, (12, 150))
    codes, scales = encode_grouped(values, format)
    for row in range(values.shape[0]):
        expected, multipliers = grouped_row(values[row], format)
        assert codes[row].tolist() == expected
        stored = scales[row].view(np.float16).astype(np.float64)
        assert [Fraction(scale) for scale in stored] == multipliers


@pytest.mark.parametrize("format", GROUPED)
def test_grouped_decode_multiplies_code_by_scale(format):
    codes, scales = encode_grouped(spread(2, (5, 150)), format)
    decoded = decode_fields(format, {"codes": codes, "scales": scales})
    group = GROUPED[format].group
    for row, column in np.ndindex(*codes.shape):
        scale = float(scales[row, column // group].view(np.float16))
        assert decoded[row, column] == scale * int(codes[row, column])


def test_e7_ties_and_scale_limits():
    codes, scales = encode_grouped(row_of([7, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5], 64), "q4_g64_fp16")
    assert codes[0, :7].tolist() == [7, 0, 2, 2, 0, -2, -2] and scales[0, 0] == 0x3C00
    tiny = bfloat16_values(np.full((1, 64), 0x3636, np.uint16))
    codes, scales = encode_grouped(tiny, "q4_g64_fp16")
    assert scales[0, 0] == 0x0006 and set(codes[0].tolist()) == {7}
    pair = np.zeros((1, 64), np.uint32)
    pair[0, :2] = 0x41A0B334, 0x417C7BFF
    codes, scales = encode_grouped(pair.view(np.float32), "q4_g64_fp16")
    assert scales[0, 0] == 0x41BD and codes[0, :2].tolist() == [7, 6]
    codes, scales = encode_grouped(row_of([2.0**-126], 64), "q4_g64_fp16")
    assert scales[0, 0] == 0x0001 and not codes.any()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("encode", ["q4", "fp8", "nvfp4"])
def test_infinity_and_nan_are_refused_with_their_row(bad, encode):
    values = np.zeros((4, 64), np.float32)
    values[2, 5] = bad
    run = {
        "q4": lambda: encode_grouped(values, "q4_g64_fp16"),
        "fp8": lambda: encode_fp8_rows(values),
        "nvfp4": lambda: encode_nvfp4(values),
    }[encode]
    with pytest.raises(ArtifactError, match="row 2 holds infinity or NaN"):
        run()


def test_a_scale_beyond_its_format_is_refused():
    with pytest.raises(ArtifactError, match=r"row 0, group 0: .* beyond binary16"):
        encode_grouped(row_of([3.4e38], 64), "q4_g64_fp16")
    with pytest.raises(ArtifactError, match="infinity or NaN"):
        encode_fp8_rows(np.full((1, 4), np.float32(3.4028235e38)))
    with pytest.raises(ArtifactError, match="divisor beyond binary32"):
        encode_nvfp4(np.full((1, 16), np.float32(1e-38)))


@pytest.mark.parametrize(
    ("format", "scale", "expected"),
    [
        ("q4_g64_fp16", 0x3092, [7, -7, 4, -2, 0, 5]),
        ("q5_g64_fp16", 0x2C44, [15, -15, 8, -5, 0, 11]),
        ("q6_g64_fp16", 0x2821, [31, -31, 16, -9, 0, 23]),
        ("q8_g32_fp16", 0x2008, [127, -127, 64, -38, 1, 95]),
    ],
)
def test_e8_one_group(format, scale, expected):
    codes, scales = encode_grouped(row_of([1, -1, 0.5, -0.3, 0.01, 0.75], 64), format)
    assert scales[0, 0] == scale and codes[0, :6].tolist() == expected


def test_e9_fp8_rows():
    codes, scales = encode_fp8_rows(row_of([1, -0.5, 0.30078125, 0, 448, 2], 6))
    assert scales[0] == 0x3F80 and codes.tobytes().hex(" ") == "38 b0 2a 00 7e 40"
    codes, scales = encode_fp8_rows(np.zeros((1, 6), np.float32))
    assert scales[0] == 0 and not codes.any()
    words = np.array([[0x3A83, 0xBB45, 0x3B03, 0x3A38, 0x3728, 0xB586]], np.uint16)
    codes, scales = encode_fp8_rows(bfloat16_values(words))
    assert scales[0] == 0x36E1 and codes.tobytes().hex(" ") == "71 fe 79 6d 3c a2"


def test_fp8_encoder_agrees_with_exact_arithmetic():
    values = bfloat16_values(bfloat16_words(spread(3, (12, 40))))
    codes, scales = encode_fp8_rows(values)
    for row in range(values.shape[0]):
        exact = [Fraction(float(value)) for value in values[row]]
        scale = rounded(rounded(max(map(abs, exact)) / 448, BINARY32), BFLOAT16)
        assert Fraction(float(bfloat16_values(scales[row : row + 1])[0])) == scale
        inverse = rounded(1 / scale, BINARY32)
        for value, code in zip(exact, codes[row], strict=True):
            target = min(max(rounded(value * inverse, BINARY32), Fraction(-448)), Fraction(448))
            assert Fraction(float(E4M3_VALUES[code])) == rounded(target, E4M3)


def test_fp8_zero_keeps_its_sign_and_survives_a_subnormal_scale():
    codes, scales = encode_fp8_rows(np.array([[0.0, -0.0, 1.0]], np.float32))
    assert codes[0].tolist() == [0x00, 0x80, 0x7E]
    codes, scales = encode_fp8_rows(np.array([[0.0, 2.0**-130]], np.float32))
    assert scales[0] == 0x0001 and codes[0, 0] == 0 and codes[0, 1] == 0x7E


def test_e4m3_table_and_rounding_to_the_even_word():
    for word in range(0x7F):
        exponent, mantissa = word >> 3, word & 7
        value = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        assert E4M3_VALUES[word] == value and E4M3_VALUES[word | 0x80] == -value
    assert np.isnan(E4M3_VALUES[[0x7F, 0xFF]]).all()
    middles = ((E4M3_VALUES[:0x7E] + E4M3_VALUES[1:0x7F]) / 2).astype(np.float32)
    words = e4m3_words(middles)
    assert not (words & 1).any()
    assert (np.abs(words.astype(int) - np.arange(0x7E)) <= 1).all()
    assert e4m3_words(np.array([1e9, -1e9], np.float32)).tolist() == [0x7E, 0xFE]


def test_e10_nvfp4_row():
    values = [0.1, -0.2, 0.3, 0.4, 0.5, 0.6, -0.7, 0.8, 0.9, 1.0, 1.1, 1.2, -1.3, 1.4, 1.5, -1.6]
    values += [0.01, -0.02, 0.03, -0.04]
    codes, scales, divisor = encode_nvfp4(row_of(values, 64))
    assert divisor == 1680.0 and divisor.tobytes().hex(" ") == "00 00 d2 44"
    assert scales.tobytes().hex(" ") == "7e 53 00 00"
    assert codes[0, :10].tobytes().hex(" ") == "a1 32 44 5d 65 66 7e f7 d3 f6"
    assert not codes[0, 10:].any()


def test_nvfp4_encoder_agrees_with_exact_arithmetic():
    values = spread(4, (6, 64))
    codes, scales, divisor = encode_nvfp4(values)
    exact_divisor = rounded(2688 / Fraction(float(np.abs(values).max())), BINARY32)
    assert Fraction(float(divisor)) == exact_divisor
    for row, block in np.ndindex(*scales.shape):
        part = values[row, block * 16 : block * 16 + 16]
        exact = [Fraction(float(value)) for value in part]
        largest = max(map(abs, exact))
        target = rounded(rounded(largest * exact_divisor, BINARY32) / 6, BINARY32)
        scale = rounded(min(target, Fraction(448)), E4M3)
        if scale == 0 and largest:
            scale = Fraction(1, 512)
        assert Fraction(float(E4M3_VALUES[scales[row, block]])) == scale
        for lane, value in enumerate(exact):
            byte = codes[row, block * 8 + lane // 2]
            code = byte >> 4 if lane % 2 else byte & 15
            if scale == 0:
                assert code == 0
                continue
            scaled = rounded(rounded(value * exact_divisor, BINARY32) / scale, BINARY32)
            distances = [abs(abs(scaled) - point) for point in GRID]
            nearest = [i for i, d in enumerate(distances) if d == min(distances)]
            index = nearest[0] if len(nearest) == 1 else next(i for i in nearest if i % 2 == 0)
            assert code == index | (bool(np.signbit(part[lane])) << 3)


def test_nvfp4_decode_divides_once():
    generator = np.random.default_rng(5)
    codes = generator.integers(0, 256, (8, 32), dtype=np.uint8)
    scales = generator.integers(0, 127, (8, 4), dtype=np.uint8)
    fields = {"codes": codes, "scales": scales, "divisor": np.float32(1234.567)}
    decoded = decode_fields("nvfp4", fields)
    for row, column in np.ndindex(8, 64):
        byte = codes[row, column // 2]
        code = byte >> 4 if column % 2 else byte & 15
        product = Fraction(float(E2M1_VALUES[code])) * Fraction(
            float(E4M3_VALUES[scales[row, column // 16]])
        )
        expected = rounded(product / Fraction(float(np.float32(1234.567))), BINARY32)
        assert Fraction(float(decoded[row, column])) == expected
    zero = decode_fields(
        "nvfp4", {"codes": np.full((1, 8), 8, np.uint8), "scales": scales[:1, :1], "divisor": 1.0}
    )
    assert np.signbit(zero[0, 0]) and not np.signbit(zero[0, 1])


def test_all_zero_matrices():
    codes, scales, divisor = encode_nvfp4(np.zeros((2, 32), np.float32))
    assert divisor == 1 and not codes.any() and not scales.any()
    codes, scales = encode_grouped(np.zeros((2, 32), np.float32), "q8_g32_fp16")
    assert not codes.any() and not scales.any()


def test_direct_formats_keep_every_word():
    words = np.array([0x0000, 0x8000, 0x0001, 0x7FC1], np.uint16)
    decoded = decode_fields("bf16", {"words": words})
    assert (decoded.view(np.uint32) >> 16).tolist() == words.tolist()
    quiet = np.array([0x7FC01234], np.uint32).view(np.float32)
    assert decode_fields("fp32", {"words": quiet}).view(np.uint32)[0] == 0x7FC01234
    ids = decode_fields("int32", {"words": np.array([-1, 5], np.int32)})
    assert ids.dtype == np.int32 and ids.tolist() == [-1, 5]
    with pytest.raises(ValueError, match="beyond 32 bits"):
        encode_direct("int32", np.array([1 << 31]))
    assert encode_direct("bf16", np.array([1 + 2.0**-8], np.float32))["words"][0] == 0x3F80


def test_fusing_keeps_rows_and_wants_one_divisor():
    codes, scales, divisor = encode_nvfp4(spread(6, (2, 16)))
    one = {"codes": codes, "scales": scales, "divisor": divisor}
    fused = fuse_rows("nvfp4", [one, one])
    assert fused["codes"].shape == (4, 8) and fused["divisor"] == divisor
    with pytest.raises(ArtifactError, match="different divisors"):
        fuse_rows("nvfp4", [one, one | {"divisor": np.nextafter(divisor, np.float32(0))}])
    with pytest.raises(ArtifactError, match="different widths"):
        fuse_rows("nvfp4", [one, one | {"codes": codes[:, :4]}])


def test_word_scans_name_the_row():
    codes, scales = encode_grouped(spread(7, (3, 64)) + 1, "q8_g32_fp16")
    check_grouped("q8_g32_fp16", {"codes": codes, "scales": scales}, "w")
    bad = codes.copy()
    bad[1, 3] = -128
    with pytest.raises(ArtifactError, match=r"w: row 1, column 3: code outside -127..127"):
        check_grouped("q8_g32_fp16", {"codes": bad, "scales": scales}, "w")
    for word in (0x8000, 0x7C00, 0x7E00, 0xBC00):
        wrong = scales.copy()
        wrong[2, 1] = word
        with pytest.raises(ArtifactError, match="w: row 2, column 1: group scale is negative"):
            check_grouped("q8_g32_fp16", {"codes": codes, "scales": wrong}, "w")
    wrong = scales.copy()
    wrong[0, 0] = 0
    with pytest.raises(ArtifactError, match=r"row 0, column .: non-zero code under a zero scale"):
        check_grouped("q8_g32_fp16", {"codes": codes, "scales": wrong}, "w")

    codes, scales = encode_fp8_rows(spread(8, (3, 8)) + 1)
    check_fp8({"codes": codes, "scales": scales}, "w")
    bad = codes.copy()
    bad[2, 1] = 0xFF
    with pytest.raises(ArtifactError, match="w: row 2, column 1: NaN code"):
        check_fp8({"codes": bad, "scales": scales}, "w")
    wrong = scales.copy()
    wrong[1] = 0x8000
    with pytest.raises(ArtifactError, match="w: row 1: row scale word 0x8000"):
        check_fp8({"codes": codes, "scales": wrong}, "w")
    wrong[1] = 0
    with pytest.raises(ArtifactError, match="w: row 1, column 0: non-zero code under scale 0"):
        check_fp8({"codes": codes, "scales": wrong}, "w")

    codes, scales, divisor = encode_nvfp4(spread(9, (2, 32)))
    fields = {"codes": codes, "scales": scales, "divisor": divisor}
    check_nvfp4(fields, "w")
    for byte in (0x7F, 0x80):
        wrong = scales.copy()
        wrong[1, 1] = byte
        with pytest.raises(ArtifactError, match=f"w: row 1, block 1: scale byte {byte:#04x}"):
            check_nvfp4(fields | {"scales": wrong}, "w")
