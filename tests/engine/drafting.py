"""Speculative programs over the small random model, and drafters made for tests."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ninfer_jax.engine.drafters import (
    DFlash2Drafter,
    Drafter,
    DrafterWeights,
    MtpDrafter,
    ProposalHead,
)
from ninfer_jax.engine.programs import DevicePrograms, ProgramShape
from ninfer_jax.engine.request import SamplingParams
from ninfer_jax.engine.rounds import ProgramModel, ProgramWeights
from ninfer_jax.engine.units import DecodeRow, Pending, PrefillUnit, Round
from ninfer_jax.model.dflash2 import DFlash2
from ninfer_jax.model.draft_config import DFlash2Config
from ninfer_jax.model.mtp import MultiTokenPrediction
from ninfer_jax.model.weights import as_weights, initial_arrays, spec_tree
from ninfer_jax.quantization.kv import CODECS, KvCodec
from ninfer_jax.quantization.weights import DenseWeight
from ninfer_jax.testing.replay_drafter import replay_drafter
from tests.model.building import Model, small_model

SHAPE = ProgramShape(
    pages=24,
    slots=5,
    max_context=256,
    lane_buckets=(1, 4),
    prefill_buckets=(64,),
    rounds_per_dispatch=8,
)
ONE_BUCKET = dataclasses.replace(SHAPE, lane_buckets=(4,))
WHOLE = (("mtp", 4), ("dflash2", 7))
"""Drafters of which every program is compiled; of others those that most tests run."""
PROMPTS = {0: 5, 1: 60, 2: 33, 3: 64}
"""Slot -> length of its prompt."""
GREEDY = SamplingParams(temperature=0.0)
F32 = jnp.dtype(jnp.float32)
CODEC = CODECS["f32"]


def draft_config(model: Model) -> DFlash2Config:
    """A drafter of two layers with a window that prompts exceed."""
    text = model.config
    return DFlash2Config(
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        intermediate_size=96,
        num_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        sliding_window=32,
        taps=(0, 2),
        mask_token=499,
        conv_taps=2,
        group_size=16,
        selector_rank=8,
        top_k=4,
    )


def random_weights(
    module: nnx.Module, seed: int, dtype: jnp.dtype = F32
) -> tuple[nnx.GraphDef, dict]:
    """Graph and weights of a module; everything random, also what starts as an identity."""
    graph, _ = nnx.split(module)
    arrays = initial_arrays(module, seed)
    leaves, treedef = jax.tree.flatten(arrays)
    rng = np.random.RandomState(seed)
    noisy = [leaf + 0.1 * rng.standard_normal(leaf.shape).astype(np.float32) for leaf in leaves]
    return graph, as_weights(spec_tree(module), jax.tree.unflatten(treedef, noisy), dtype)


@functools.cache
def random_drafter(
    name: str, draft_tokens: int, seed: int = 0, codec: KvCodec = CODEC, dtype: jnp.dtype = F32
) -> tuple[Drafter, DrafterWeights]:
    """An untrained MTP or DFlash2 drafter."""
    model = small_model()
    if name == "mtp":
        graph, weights = random_weights(MultiTokenPrediction(model.config), seed, dtype)
        return MtpDrafter(graph, codec, draft_tokens), DrafterWeights(weights)
    config = draft_config(model)
    graph, weights = random_weights(DFlash2(config), seed, dtype)
    return DFlash2Drafter(graph, config, codec, draft_tokens), DrafterWeights(weights)


def proposal_head(model: Model, ids: np.ndarray) -> ProposalHead:
    """Rows of the model's own head."""
    (weight,) = model.weights["head"]["weight"]
    ids = np.sort(ids).astype(np.int32)
    return ProposalHead((DenseWeight(weight.matrix[ids]),), jnp.asarray(ids))


class GreedyPrograms(DevicePrograms):
    """Without the programs for sampled rows, which take half of the time to compile."""

    def _jitted(self):
        return {key: one for key, one in super()._jitted().items() if key[-1] is not False}


def make_programs(
    drafter: tuple[Drafter, DrafterWeights] | None,
    model: Model | None = None,
    shape: ProgramShape = SHAPE,
    kind: type[DevicePrograms] = DevicePrograms,
) -> DevicePrograms:
    """Compiled programs in f32."""
    model = model or small_model()
    static, weights = drafter or (None, None)
    programs = kind(
        model.config,
        ProgramModel(model.graph, CODEC, static),
        ProgramWeights(model.weights, weights),
        shape,
        F32,
        jax.devices("cpu")[0],
    )
    programs.compile(lambda line: print(line))
    return programs


@dataclasses.dataclass
class Lane:
    """One sequence, driven by hand."""

    slot: int
    prompt: np.ndarray
    sampling: SamplingParams = GREEDY
    stop: frozenset[int] = frozenset()
    tokens: list[int] = dataclasses.field(default_factory=list)
    rounds: list[Round] = dataclasses.field(default_factory=list)
    pending: Pending = dataclasses.field(default_factory=Pending)

    @property
    def pages(self) -> list[int]:
        """Four pages, scattered and different for every slot."""
        return [23 - self.slot, 4 + self.slot, 13 - self.slot, 14 + self.slot]

    @property
    def frontier(self) -> int:
        """Tokens that are committed on the device once what is pending is."""
        return len(self.prompt) + max(len(self.tokens) - 1, 0)

    def prefill(self, programs: DevicePrograms, pieces=None, *, start: int = 0) -> int:
        """Runs the prompt from `start` in pieces; returns and keeps the first token."""
        token = None
        for length in pieces or [len(self.prompt) - start]:
            last = start + length == len(self.prompt)
            unit = PrefillUnit(
                slot=self.slot,
                pages=self.pages,
                tokens=np.asarray(self.prompt[start : start + length], np.int32),
                start=start,
                fresh=start == 0,
                sampling=self.sampling,
                sample=last,
                pending=self.pending,
            )
            token = programs.prefill(unit).result()
            self.pending = Pending(0, programs.drafting.lag)
            start += length
        self.tokens = [token]
        return token

    def row(self, limit: int) -> DecodeRow:
        """The lane in a decode dispatch."""
        return DecodeRow(
            slot=self.slot,
            pages=self.pages,
            token=self.tokens[-1],
            position=self.frontier,
            limit=limit,
            stop_token_ids=self.stop,
            sampling=self.sampling,
            pending=self.pending,
        )

    def take(self, rounds: list[Round], drafting: bool) -> None:
        """Keeps everything of a dispatch."""
        for one in rounds:
            self.tokens.extend(one.tokens)
        self.rounds.extend(rounds)
        if drafting:
            kept = len(rounds[-1].tokens)
            self.pending = Pending(kept, kept)

    def keep(self, count: int) -> None:
        """Forgets outputs of the last round so that `count` of its tokens are kept."""
        dropped = self.pending.fold - count
        if dropped:
            del self.tokens[-dropped:]
        self.pending = Pending(count, count)


def decode(
    programs: DevicePrograms, lanes: list[Lane], rounds: int, limits: int | list[int] = 100
) -> int:
    """One dispatch over the lanes, with one limit or one for each; returns how many rounds ran."""
    limits = [limits] * len(lanes) if isinstance(limits, int) else limits
    rows = [lane.row(limit) for lane, limit in zip(lanes, limits, strict=True)]
    produced = programs.decode(rows, rounds).result()
    for lane, of_lane in zip(lanes, produced, strict=True):
        lane.take(of_lane, programs.drafting.draft_tokens > 0)
    return len(produced[0])


def run(programs: DevicePrograms, lanes: list[Lane], count: int, rounds: int = 8) -> None:
    """Decodes until every lane has exactly `count` tokens; finished lanes leave."""
    while group := [lane for lane in lanes if len(lane.tokens) < count]:
        decode(programs, group, rounds, [count - len(lane.tokens) for lane in group])


def prompt(seed: int, length: int) -> np.ndarray:
    """Random addressable ids."""
    return np.random.RandomState(seed).randint(0, small_model().config.addressable_ids, length)


def lanes(slots=PROMPTS, **options) -> list[Lane]:
    """Fresh lanes with the prompts of their slots."""
    return [Lane(slot, prompt(slot, PROMPTS[slot]), **options) for slot in slots]


def started(programs: DevicePrograms, group: list[Lane]) -> list[Lane]:
    """The lanes behind their prompts."""
    for lane in group:
        lane.prefill(programs)
    return group


# Programs are compiled once for all tests of a process: that is most of their time.


@functools.cache
def plain() -> DevicePrograms:
    """Without a drafter."""
    return make_programs(None, shape=ONE_BUCKET)


@functools.cache
def drafted(name: str, draft_tokens: int) -> DevicePrograms:
    """With a random drafter."""
    drafter = random_drafter(name, draft_tokens)
    if (name, draft_tokens) in WHOLE:
        return make_programs(drafter)
    return make_programs(drafter, shape=ONE_BUCKET, kind=GreedyPrograms)


@functools.cache
def reference() -> dict[int, list[int]]:
    """Greedy tokens of every lane without a drafter."""
    group = started(plain(), lanes())
    run(plain(), group, 90)
    return {lane.slot: lane.tokens[:90] for lane in group}


@functools.cache
def replay(draft_tokens: int) -> DevicePrograms:
    """With a drafter that knows the greedy text of all lanes."""
    record = np.zeros((SHAPE.slots, SHAPE.max_context), np.int32)
    for slot, tokens in reference().items():
        text = np.concatenate([prompt(slot, PROMPTS[slot]), tokens])
        record[slot, : len(text)] = text
    drafter = replay_drafter(record, draft_tokens)
    return make_programs(drafter, shape=ONE_BUCKET, kind=GreedyPrograms)
