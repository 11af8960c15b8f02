"""Random stored words of every format, at the speed at which a disk takes them.

One block of a few megabytes is drawn per format. The words of an object are that block, begun at
an offset that depends on (seed, object) and repeated to the size of each plane. All planes of a
format hold the same number of groups of 128 values in their block and begin at the same group, so a
code and its high bits stay together.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np

from ninfer_jax.artifact import block_scale, row_split
from ninfer_jax.artifact.codecs import encoded_bytes, pack_object
from ninfer_jax.artifact.direct import bfloat16_words
from ninfer_jax.artifact.formats import FP8, NVFP4, TENSOR_ALIGNMENT
from ninfer_jax.artifact.fp8 import e4m3_words
from ninfer_jax.artifact.grouped import GROUPED, groups_per_row

GROUP = 128
BLOCK_GROUPS = 32771
"""Groups in a block: a prime, so that the repetition never falls into step with the rows."""

# Standard deviation of the FP8 codes; the largest code is 448.
_FP8_SPREAD = 100.0
# Root mean square of the E2M1 codes when all are equally frequent.
_E2M1_SPREAD = math.sqrt((0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8)
# Block scales of NVFP4: 0.75 to 1.375 in E4M3FN.
_NVFP4_SCALES = (0x34, 0x3C)


class SyntheticWords:
    """Source of words that decode to magnitudes of a trained model.

        matrices     mean 0, standard deviation 1 / sqrt(columns); the token embedding 1
        norms        0.2 N(0, 1); plus 1 where the norm multiplies as it stands
        biases       0.02 N(0, 1), convolutions 0.4 N(0, 1)
        a_log        log U(0.2, 4.2), dt_bias N(0, 1)
        token ids    distinct, below `public_tokens`
        divisors     finite and positive

    `seed` and the name of an object determine its words. `block_groups` is the size of the blocks.
    """

    def __init__(self, seed: int, public_tokens: int, block_groups: int = BLOCK_GROUPS):
        self._seed = seed
        self._public_tokens = public_tokens
        self._groups = block_groups
        # Bounded, so that one source never keeps more than some tens of megabytes.
        self._scales = lru_cache(maxsize=16)(self._draw_scales)
        self._normal_words = lru_cache(maxsize=8)(self._draw_normal_words)
        self._codes = lru_cache(maxsize=None)(self._draw_codes)

    def chunks(self, name: str, format: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Yield the payload of one object as consecutive uint8 arrays, each of a few megabytes.

        `name` is the logical parameter, the first one of a fused parent; for an input divisor it
        ends in `input_scale_divisor`.
        """
        if format == NVFP4:
            planes = self._nvfp4(name, shape)
        elif format == FP8:
            planes = self._fp8(name, shape)
        elif format in GROUPED:
            planes = self._grouped(name, format, shape)
        elif format == "bf16":
            planes = [(0, self._bfloat16(name, shape))]
        else:
            small = self._small(name, format, shape)
            planes = [(0, iter([small.view(np.uint8).reshape(-1)]))]
        position = 0
        for offset, plane in planes:
            if offset > position:
                yield np.zeros(offset - position, np.uint8)
                position = offset
            for chunk in plane:
                position += chunk.size
                yield chunk
        assert position == encoded_bytes(format, shape), f"{name}: planes do not fill the object"

    def _random(self, name: str) -> np.random.RandomState:
        # RandomState, because its streams are frozen for every version of NumPy.
        return np.random.RandomState(zlib.crc32(f"{self._seed}/{name}".encode()))

    def _start(self, name: str) -> int:
        """First group of an object in its block."""
        return zlib.crc32(f"{self._seed}/{name}".encode()) % self._groups

    @cached_property
    def _normal(self) -> np.ndarray:
        """N(0, 1), one group a row."""
        return self._random("normal").standard_normal((self._groups, GROUP)).astype(np.float32)

    def _nvfp4(self, name: str, shape: tuple[int, ...]):
        rows, columns = shape
        start = self._start(name)
        codes, scales = self._codes(NVFP4)
        spread = _E2M1_SPREAD * _scale_spread()
        divisor = np.array([spread / _deviation(name, columns)], "<f4")
        offset = _aligned(rows * columns // 2)
        scale_bytes = rows * columns // block_scale.BLOCK
        yield 0, _repeated(codes, start, rows * columns // 2)
        yield offset, _repeated(scales, start, scale_bytes)
        yield offset + scale_bytes, iter([divisor.view(np.uint8)])

    def _fp8(self, name: str, shape: tuple[int, ...]):
        rows, columns = shape
        start = self._start(name)
        scales = self._scales("bf16", _deviation(name, columns) / _FP8_SPREAD)
        yield 0, _repeated(self._codes(FP8)[0], start, rows * columns)
        yield _aligned(rows * columns), _repeated(scales, start, rows * 2)

    def _grouped(self, name: str, format: str, shape: tuple[int, ...]):
        rows, columns = shape
        start = self._start(name)
        planes = row_split.geometry(format, shape)
        bits = GROUPED[format].bits
        scales = self._scales("fp16", _deviation(name, columns) / (GROUPED[format].maximum / 3))
        base, high = self._codes(format)
        # A row: physical bytes, and those that belong to existing columns.
        used = columns if bits == 8 else columns // 2
        yield 0, _rows(base, start, rows, planes.base_row, used)
        if planes.high_row:
            used = columns * (bits - 4) // 8
            yield planes.high_offset, _rows(high, start, rows, planes.high_row, used)
        used = 2 * groups_per_row(format, columns)
        yield planes.scale_offset, _rows(scales, start, rows, 2 * planes.groups, used)

    def _bfloat16(self, name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        mean, deviation = _distribution(name, shape)
        block = self._normal_words(mean, deviation)
        return _repeated(block, self._start(name), 2 * math.prod(shape))

    def _small(self, name: str, format: str, shape: tuple[int, ...]) -> np.ndarray:
        random = self._random(name)
        if format == "int32":
            return random.permutation(self._public_tokens)[: shape[0]].astype("<i4")
        if name.endswith("input_scale_divisor"):
            # 2688 is the largest code times the largest scale; operands reach 8 to 16.
            return np.array(2688 / random.uniform(8, 16), "<f4").reshape(1)
        if name.endswith("a_log"):
            return np.log(random.uniform(0.2, 4.2, shape)).astype("<f4")
        return random.standard_normal(shape).astype("<f4")

    def _draw_codes(self, format: str) -> tuple[np.ndarray, np.ndarray]:
        """Draw the code block, and the block of high bits or NVFP4 scales that goes with it."""
        none = np.empty((self._groups, 0), np.uint8)
        if format == NVFP4:
            random = self._random(NVFP4)
            codes = random.randint(0, 256, (self._groups, GROUP // 2), np.uint8)
            shape = (self._groups, GROUP // block_scale.BLOCK)
            return codes, random.randint(*_NVFP4_SCALES, shape, np.uint8)
        if format == FP8:
            return e4m3_words(self._normal * np.float32(_FP8_SPREAD)), none
        largest = GROUPED[format].maximum
        codes = np.clip(np.rint(self._normal * np.float32(largest / 3)), -largest, largest)
        scales = np.zeros((self._groups, groups_per_row(format, GROUP)), np.uint16)
        fields = {"codes": codes.astype(np.int8), "scales": scales}
        stored = np.frombuffer(pack_object(format, fields, codes.shape), np.uint8)
        planes = row_split.geometry(format, codes.shape)
        base = stored[: codes.shape[0] * planes.base_row]
        high = stored[planes.high_offset :][: codes.shape[0] * planes.high_row]
        return base.reshape(self._groups, -1), high.reshape(self._groups, planes.high_row)

    def _draw_scales(self, kind: str, mean: float) -> np.ndarray:
        """Draw positive multipliers, 0.75 to 1.25 of `mean`: two words a group."""
        values = mean * self._random("scales").uniform(0.75, 1.25, (self._groups, 2))
        words = (
            bfloat16_words(values.astype(np.float32))
            if kind == "bf16"
            else np.maximum(values.astype("<f2").view(np.uint16), 1)
        )
        return words.view(np.uint8)

    def _draw_normal_words(self, mean: float, deviation: float) -> np.ndarray:
        values = self._normal[:, : GROUP // 8] * np.float32(deviation) + np.float32(mean)
        return bfloat16_words(values).view(np.uint8)


def _deviation(name: str, columns: int) -> float:
    return 1.0 if name == "text/token_embedding" else 1 / math.sqrt(columns)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a BF16 tensor."""
    last = name.rsplit("/", 1)[-1]
    if last.endswith("bias"):
        return 0.0, 0.02
    if last in ("convolution", "base_kernel"):
        return 0.0, 0.4
    if len(shape) == 1:
        # Text and MTP store their norms without the 1, except the one of Gated DeltaNet.
        offset = name.startswith(("text/", "mtp/")) and not name.endswith("gdn/norm")
        return (0.0 if offset else 1.0), 0.2
    return 0.0, 1 / math.sqrt(shape[-1])


def _scale_spread() -> float:
    words = np.arange(*_NVFP4_SCALES)
    values = (1 + words % 8 / 8) * 2.0 ** (words // 8 - 7)
    return float(np.sqrt(np.mean(values**2)))


def _repeated(block: np.ndarray, group: int, size: int) -> Iterator[np.ndarray]:
    """Yield `size` bytes of a block repeated for ever, from row `group` on, as views of it."""
    content = block.reshape(-1)
    position = group * block.shape[1]
    while size:
        part = content[position : position + size]
        yield part
        size -= part.size
        position = 0


def _rows(
    block: np.ndarray, group: int, rows: int, row_bytes: int, used_bytes: int
) -> Iterator[np.ndarray]:
    """Yield a plane whose rows hold `used_bytes` of the repeated block and then zeros."""
    if row_bytes == used_bytes:
        yield from _repeated(block, group, rows * row_bytes)
        return
    position, content = group * block.shape[1], block.reshape(-1)
    at_once = max(1, content.size // row_bytes)
    for begin in range(0, rows, at_once):
        count = min(at_once, rows - begin)
        plane = np.zeros((count, row_bytes), np.uint8)
        index = position + begin * used_bytes + np.arange(count * used_bytes)
        plane[:, :used_bytes] = content.take(index, mode="wrap").reshape(count, used_bytes)
        yield plane.reshape(-1)


def _aligned(size: int) -> int:
    return -(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
