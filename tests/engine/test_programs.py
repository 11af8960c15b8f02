"""The device programs with a tiny random model: tokens, stops, lanes, failures, no recompiles."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.checkpoint.synthetic import synthetic_parameters
from ninfer_jax.engine.programs import (
    DevicePrograms,
    ProgramShape,
    lane_buckets,
    prefill_buckets,
)
from ninfer_jax.engine.random import Purpose, uniform
from ninfer_jax.engine.request import SamplingParams
from ninfer_jax.engine.rounds import STOP_TOKENS, ProgramModel, ProgramWeights
from ninfer_jax.engine.sampling import SamplingRows, penalize, sampled_token
from ninfer_jax.engine.units import NON_FINITE, DecodeRow, PrefillUnit, Round
from ninfer_jax.errors import ConfigError
from ninfer_jax.quantization.kv import CODECS
from tests.model.building import Driver, Model, build_model, small_model

SHAPE = ProgramShape(
    pages=24,
    slots=5,
    max_context=256,
    lane_buckets=(2, 4),
    prefill_buckets=(64, 128),
    rounds_per_dispatch=8,
)
GREEDY = SamplingParams(temperature=0.0)


def make_programs(model: Model, shape: ProgramShape = SHAPE) -> DevicePrograms:
    programs = DevicePrograms(
        model.config,
        ProgramModel(model.graph, CODECS["f32"]),
        ProgramWeights(model.weights),
        shape,
        jnp.dtype(jnp.float32),
        jax.devices("cpu")[0],
    )
    programs.compile(lambda line: print(line))
    return programs


@pytest.fixture(scope="module")
def programs() -> DevicePrograms:
    return make_programs(small_model())


@dataclasses.dataclass
class Lane:
    """One sequence, driven by hand."""

    slot: int
    prompt: np.ndarray
    sampling: SamplingParams = GREEDY
    stop: frozenset[int] = frozenset()
    tokens: list[int] = dataclasses.field(default_factory=list)

    @property
    def pages(self) -> list[int]:
        """Four pages, scattered and different for every slot."""
        return [23 - self.slot, 4 + self.slot, 13 - self.slot, 14 + self.slot]

    def prefill(self, programs: DevicePrograms, pieces=None) -> int:
        """Runs the prompt in pieces; returns and keeps the first token."""
        start = 0
        pieces = pieces or [len(self.prompt)]
        for index, length in enumerate(pieces):
            unit = PrefillUnit(
                slot=self.slot,
                pages=self.pages,
                tokens=self.prompt[start : start + length].astype(np.int32),
                start=start,
                fresh=start == 0,
                sampling=self.sampling,
                sample=index == len(pieces) - 1,
            )
            token = programs.prefill(unit).result()
            start += length
        self.tokens.append(token)
        return token

    def row(self, limit: int = 100) -> DecodeRow:
        """The next decode row."""
        return DecodeRow(
            slot=self.slot,
            pages=self.pages,
            token=self.tokens[-1],
            position=len(self.prompt) + len(self.tokens) - 1,
            limit=limit,
            stop_token_ids=self.stop,
            sampling=self.sampling,
        )


def prompt(seed: int, length: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, small_model().config.addressable_ids, length)


def decode(programs: DevicePrograms, lanes: list[Lane], rounds: int, limit: int = 100) -> int:
    """One dispatch over the lanes, which keep their tokens; returns how many rounds ran."""
    produced = programs.decode([lane.row(limit) for lane in lanes], rounds).result()
    produced = [[token for one in rounds for token in one.tokens] for rounds in produced]
    for lane, tokens in zip(lanes, produced, strict=True):
        lane.tokens.extend(tokens)
    return max(len(tokens) for tokens in produced)


@functools.cache
def full_logits(tokens: tuple[int, ...]) -> np.ndarray:
    """Logits of a whole sequence in one call, [n, V]."""
    driver = Driver(small_model(), pages=4, slots=1)
    return driver.feed(np.array(tokens), 0, np.array([3, 1, 0, 2]), [(len(tokens), 192)])


def teacher_forced(lane: Lane) -> np.ndarray:
    """The logits from which each token of the lane was chosen."""
    whole = (*lane.prompt.tolist(), *lane.tokens[:-1])
    return full_logits(whole)[len(lane.prompt) - 1 :]


def assert_greedy(lane: Lane) -> None:
    logits = teacher_forced(lane)
    top = np.sort(logits, axis=-1)[:, -2:]
    for token, row, (second, first) in zip(lane.tokens, logits, top, strict=True):
        # Rounding differs between one call and many; it may only decide a near-tie.
        assert token == row.argmax() or first - second < 1e-4


@pytest.mark.parametrize(
    ("lengths", "rounds"),
    [
        ((1,), (8, 8, 5)),
        ((64,), (1, 1, 1)),
        ((65, 3), (8, 2)),
        ((100, 17, 128), (3, 8)),
        ((63, 2, 127, 40), (8, 8)),
    ],
    ids=str,
)
def test_greedy_decode_is_the_teacher_forced_argmax(programs, lengths, rounds):
    lanes = [Lane(slot, prompt(length, length)) for slot, length in enumerate(lengths)]
    for lane in lanes:
        lane.prefill(programs)
    for count in rounds:
        assert decode(programs, lanes, count) == count
    for lane in lanes:
        assert len(lane.tokens) == 1 + sum(rounds)
        assert_greedy(lane)


def test_lanes_may_join_and_leave(programs):
    """The same tokens whichever lanes share a dispatch, also while others prefill."""
    expected = Lane(0, prompt(50, 90))
    expected.prefill(programs)
    for _ in range(3):
        decode(programs, [expected], 8)
    lane, other, third = Lane(2, expected.prompt), Lane(1, prompt(1, 30)), Lane(4, prompt(2, 70))
    lane.prefill(programs, [64, 26])
    decode(programs, [lane], 3)
    other.prefill(programs)
    decode(programs, [other, lane], 8)
    third.prefill(programs, [64, 6])
    decode(programs, [third, lane, other], 5)
    decode(programs, [third, other], 8)
    decode(programs, [lane, third], 8)
    assert lane.tokens == expected.tokens
    for each in (other, third):
        assert_greedy(each)


def remembered(programs: DevicePrograms, lane: Lane) -> dict[str, np.ndarray]:
    """Everything the device keeps of a lane, position by position."""
    state = programs._state
    length = len(lane.prompt) + len(lane.tokens) - 1
    kept = {"counts": state.counts[lane.slot]}
    for index, layer in enumerate(state.decoder.layers):
        if hasattr(layer, "keys"):
            for name, planes in (("keys", layer.keys), ("values", layer.values)):
                pages = np.asarray(planes["rows"])[lane.pages]
                rows = np.moveaxis(pages, 2, 1).reshape(-1, pages.shape[1], pages.shape[3])
                kept[f"{index}/{name}"] = rows[:length]
        else:
            kept[f"{index}/recurrent"] = layer.recurrent[lane.slot]
            kept[f"{index}/convolution"] = layer.convolution[lane.slot]
    return {name: np.asarray(value) for name, value in kept.items()}


def test_a_lane_keeps_its_bits_in_company(programs):
    """Alone in the program of two, and with others in the program of four."""
    alone = Lane(0, prompt(60, 70))
    alone.prefill(programs)
    decode(programs, [alone], 8)
    expected = remembered(programs, alone)
    lane = Lane(3, alone.prompt)
    others = [Lane(slot, prompt(61 + slot, 30 + slot)) for slot in (0, 1, 2)]
    for each in (others[0], lane, *others[1:]):
        each.prefill(programs)
    decode(programs, [others[0], lane], 3)
    decode(programs, [*others, lane], 5)
    assert lane.tokens == alone.tokens
    for name, values in remembered(programs, lane).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_a_dispatch_ends_at_a_stop_token(programs):
    probe = Lane(0, prompt(7, 20))
    probe.prefill(programs)
    decode(programs, [probe], 8)
    stop = probe.tokens[4]
    first = probe.tokens[1:].index(stop) + 1
    lane, other = Lane(0, probe.prompt, stop=frozenset({stop, 3})), Lane(1, prompt(8, 9))
    lane.prefill(programs)
    other.prefill(programs)
    assert decode(programs, [other, lane], 8) == first
    assert lane.tokens == probe.tokens[: first + 1]
    assert len(other.tokens) == 1 + first
    decode(programs, [other], 8)
    assert_greedy(other)


def test_a_dispatch_ends_at_a_limit(programs):
    lane = Lane(0, prompt(7, 20))
    lane.prefill(programs)
    assert decode(programs, [lane], 8, limit=3) == 3
    assert decode(programs, [lane], 8, limit=1) == 1
    assert decode(programs, [lane], 2, limit=5) == 2
    assert_greedy(lane)


def test_more_rounds_than_the_capacity_are_cut(programs):
    lane = Lane(0, prompt(7, 20))
    lane.prefill(programs)
    assert decode(programs, [lane], 100) == SHAPE.rounds_per_dispatch


def test_too_many_stop_tokens_are_refused(programs):
    lane = Lane(0, prompt(7, 20), stop=frozenset(range(STOP_TOKENS + 1)))
    lane.tokens.append(1)
    with pytest.raises(ConfigError, match="at most 4"):
        programs.decode([lane.row()], 1)


def expected_draws(lane: Lane) -> list[int]:
    """What the law of sampling gives for the teacher-forced logits of a lane."""
    sampling, logits = lane.sampling, teacher_forced(lane)
    counts = np.zeros(logits.shape, np.int32)
    for index, token in enumerate(lane.tokens[:-1]):
        counts[index + 1 :, token] += 1
    batch = len(logits)
    halves = (sampling.seed >> 32) & 0xFFFFFFFF, sampling.seed & 0xFFFFFFFF
    seed = tuple(jnp.full((batch,), half, jnp.uint32) for half in halves)
    rows = SamplingRows(
        temperature=jnp.full((batch,), sampling.temperature),
        top_p=jnp.full((batch,), sampling.top_p),
        min_p=jnp.full((batch,), sampling.min_p),
        presence=jnp.full((batch,), sampling.presence_penalty),
        frequency=jnp.full((batch,), sampling.frequency_penalty),
        top_k=jnp.full((batch,), sampling.top_k or 20, jnp.int32),
        seed=seed,
    )
    # The first token at the prompt's length; later ones at the position of their input.
    position = len(lane.prompt) + jnp.maximum(jnp.arange(batch) - 1, 0)
    first = uniform(seed, position, Purpose.FIRST_TOKEN)
    later = uniform(seed, position, Purpose.DECODE)
    draws = jnp.where(jnp.arange(batch) == 0, first, later)
    adjusted = penalize(jnp.asarray(logits), jnp.asarray(counts), rows)
    return sampled_token(adjusted, rows, draws).tolist()


def test_sampled_tokens_follow_seed_and_position(programs):
    settings = [
        SamplingParams(temperature=1.0, seed=(1 << 63) + 12345),
        SamplingParams(temperature=0.7, top_p=0.8, top_k=5, seed=7),
        SamplingParams(temperature=1.0, presence_penalty=1.5, frequency_penalty=0.5, seed=8),
        GREEDY,
    ]
    lanes = [Lane(slot, prompt(60 + slot, 33), each) for slot, each in enumerate(settings)]
    for lane in lanes:
        lane.prefill(programs)
    for count in (1, 8, 4):
        decode(programs, lanes, count)
    for lane in lanes[:3]:
        assert lane.tokens == expected_draws(lane)
    assert_greedy(lanes[3])
    again = Lane(4, lanes[0].prompt, settings[0])
    again.prefill(programs, [33])
    decode(programs, [again], 8)
    decode(programs, [again], 5)
    assert again.tokens == lanes[0].tokens, "alone and in another slot"


def test_penalties_count_at_temperature_zero(programs):
    """The counts of a slot start anew with every sequence."""
    sampling = dataclasses.replace(GREEDY, presence_penalty=2.0, frequency_penalty=1.0)
    lanes = [Lane(3, prompt(70, 12), sampling) for _ in range(2)]
    for lane in lanes:
        lane.prefill(programs)
        decode(programs, [lane], 8)
        assert lane.tokens == expected_draws(lane)
    assert len(set(lanes[0].tokens)) > 4


def test_inactive_rows_are_inert(programs):
    """Three rows in the program of four: slots and pages of nobody keep every bit."""
    before = jax.tree.map(np.asarray, programs._state)
    lanes = [Lane(slot, prompt(80 + slot, 20)) for slot in (0, 1, 3)]
    for lane in lanes:
        lane.prefill(programs)
    decode(programs, lanes, 8)
    after = jax.tree.map(np.asarray, programs._state)
    written = [lane.pages[0] for lane in lanes]
    for old, new in zip(before.decoder.layers, after.decoder.layers, strict=True):
        if hasattr(old, "keys"):
            kept = np.setdiff1d(np.arange(SHAPE.pages), written)
            for one, other in ((old.keys, new.keys), (old.values, new.values)):
                np.testing.assert_array_equal(one["rows"][kept], other["rows"][kept])
        else:
            np.testing.assert_array_equal(old.recurrent[[2, 4]], new.recurrent[[2, 4]])
            np.testing.assert_array_equal(old.convolution[[2, 4]], new.convolution[[2, 4]])
    np.testing.assert_array_equal(before.counts[[2, 4]], after.counts[[2, 4]])


def test_nothing_is_compiled_after_start(programs):
    """Any mix of lanes, lengths, samplings and rounds; NumPy only around the calls."""
    settings = (GREEDY, SamplingParams(seed=3), SamplingParams(temperature=0.5, top_k=1))
    random = np.random.RandomState(90)
    before = programs.recompilations
    for turn in range(12):
        lanes = [
            Lane(slot, prompt(turn, int(random.randint(1, 129))), settings[random.randint(3)])
            for slot in range(random.randint(1, 5))
        ]
        for lane in lanes:
            lane.prefill(programs)
        decode(programs, lanes, int(random.randint(1, 12)), limit=int(random.randint(1, 9)))
        programs.release(0)
    assert programs.recompilations == before


def test_no_program_sorts_the_vocabulary(programs):
    """A few best candidates are searched for, and greedy programs not even that."""
    for greedy in (True, False):
        for key in (("first", greedy), ("decode", 2, greedy), ("decode", 4, greedy)):
            text = programs.compiled(*key).as_text()
            assert " sort(" not in text, key
            assert ("TopK" in text) != greedy, key


def test_a_fresh_compilation_is_counted(programs):
    before = programs.recompilations
    jax.jit(lambda x: x * 3 + before + 0.123)(np.float32(1)).block_until_ready()
    assert programs.recompilations > before


def test_weights_of_nan_give_the_sentinel():
    """Instead of text: the first token, and a decode round, report it and stop."""
    config = small_model().config
    parameters = synthetic_parameters(config, 0)
    parameters["text/final_norm"][:] = np.nan
    shape = dataclasses.replace(SHAPE, lane_buckets=(2,), prefill_buckets=(64,))
    programs = make_programs(build_model(config, parameters), shape)
    for sampling in (GREEDY, SamplingParams(seed=1)):
        lanes = [Lane(slot, prompt(slot, 10), sampling) for slot in range(2)]
        for lane in lanes:
            assert lane.prefill(programs) == NON_FINITE
            lane.tokens[-1] = 5
        assert (
            programs.decode([lane.row() for lane in lanes], 8).result()
            == [[Round((NON_FINITE,))]] * 2
        )


def test_buckets():
    assert [lane_buckets(lanes) for lanes in (1, 2, 3, 8)] == [
        (1,),
        (1, 2),
        (1, 2, 4),
        (1, 2, 4, 8),
    ]
    assert prefill_buckets(1024) == (64, 128, 256, 512, 1024)
    assert prefill_buckets(64) == (64,)
    assert prefill_buckets(320) == (64, 128, 256, 320)
    assert SHAPE.table_width == 4
    assert dataclasses.replace(SHAPE, max_context=257).table_width == 5


def test_an_empty_pool_is_refused():
    with pytest.raises(ConfigError, match="no KV page or no state slot"):
        make_programs(small_model(), dataclasses.replace(SHAPE, pages=0))
