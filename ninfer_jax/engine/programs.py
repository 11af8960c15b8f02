"""Compiles the device programs once and runs units with them.

Every program that serving can need is compiled here before the server listens, ahead of
time, against fixed shapes: a compiled program called with another shape raises, it does not
recompile. A listener still counts backend compilations afterwards, because code outside
these programs (a stray `jnp` call on the device thread) would compile silently.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ninfer_jax.engine.request import SamplingParams
from ninfer_jax.engine.rounds import (
    FLOATS,
    HEADER,
    INTEGERS,
    STOP_TOKENS,
    DeviceState,
    ProgramModel,
    ProgramWeights,
    decode_rounds,
    drafted_rounds,
    first_token,
    prefill,
)
from ninfer_jax.engine.speculation import ROUND_FACTS, log_spec
from ninfer_jax.engine.units import NON_FINITE, DecodeRow, Drafting, Pending, PrefillUnit, Round
from ninfer_jax.errors import ConfigError
from ninfer_jax.model.compilation import compiler_options
from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.state import StateShape, state_spec, zero_state
from ninfer_jax.pallas.paged_attention.reference import PAGE

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass(frozen=True)
class ProgramShape:
    """Sizes that fix every compiled shape.

    Attributes:
      pages: pages of the pool.
      slots: state slots.
      max_context: tokens of one sequence; fixes the width of a block table.
      lane_buckets: row counts of decode programs, ascending.
      prefill_buckets: column counts of prefill programs, ascending.
      rounds_per_dispatch: capacity of one decode dispatch.
    """

    pages: int
    slots: int
    max_context: int
    lane_buckets: tuple[int, ...]
    prefill_buckets: tuple[int, ...]
    rounds_per_dispatch: int

    @property
    def table_width(self) -> int:
        """Entries of a block table."""
        return -(-self.max_context // PAGE)


def lane_buckets(lanes: int, smallest: int = 1) -> tuple[int, ...]:
    """`smallest`, then its doubles up to the first that holds `lanes` rows.

    On CPU the smallest is 2: a program with one row and one column is the only one whose
    sums round differently, so without it a request has the same bits alone and in company.
    """
    buckets = [smallest]
    while buckets[-1] < lanes:
        buckets.append(2 * buckets[-1])
    return tuple(buckets)


def prefill_buckets(chunk: int) -> tuple[int, ...]:
    """64, 128, 256, ... below `chunk`, then `chunk` itself: at most half a program is padding."""
    buckets = []
    size = 64
    while size < chunk:
        buckets.append(size)
        size *= 2
    return (*buckets, chunk)


class CompileCounter:
    """Counts backend compilations in this process from the moment it is armed."""

    def __init__(self):
        self.count = 0
        self._armed = False
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, name: str, seconds: float, **_) -> None:
        if self._armed and name == COMPILE_EVENT:
            self.count += 1

    def arm(self) -> None:
        """Starts counting."""
        self._armed = True


@dataclasses.dataclass
class PendingToken:
    """`PendingPrefill` over a device array; see `ninfer_jax/engine/units.py`."""

    array: jax.Array
    sample: bool

    def result(self) -> int | None:
        """See `PendingPrefill.result`."""
        if not self.sample:
            self.array.block_until_ready()
            return None
        return int(np.asarray(self.array)[0])


@dataclasses.dataclass
class PendingRounds:
    """`PendingDecode` over a device array; see `ninfer_jax/engine/units.py`."""

    array: jax.Array
    rows: int

    def result(self) -> list[list[Round]]:
        """See `PendingDecode.result`."""
        table = np.asarray(self.array)
        produced = table[: self.rows, 1 : 1 + int(table[0, 0])].tolist()
        return [[Round((token,)) for token in _until_failure(tokens)] for tokens in produced]


@dataclasses.dataclass
class PendingDraftedRounds:
    """`PendingDecode` over the array of `speculation.speculative_rounds`."""

    array: jax.Array
    rows: int
    width: int

    def result(self) -> list[list[Round]]:
        """See `PendingDecode.result`."""
        table = np.asarray(self.array)
        count, block = int(table[0, 0]), self.width + ROUND_FACTS
        return [
            list(self._rounds(row[1 : 1 + count * block].reshape(count, block).tolist()))
            for row in table[: self.rows]
        ]

    def _rounds(self, table: list[list[int]]) -> Iterator[Round]:
        for drafted, accepted, *tokens in table:
            if tokens[0] == NON_FINITE:
                yield Round((NON_FINITE,))
                return
            yield Round(tuple(tokens[: accepted + 1]), drafted, accepted)


def _until_failure(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(NON_FINITE) + 1] if NON_FINITE in tokens else tokens


def _signed(half: int) -> int:
    """A uint32 as the int32 with the same bits."""
    return half - (1 << 32) if half >= 1 << 31 else half


class DevicePrograms:
    """The compiled programs with their weights and device state.

    Implements `ninfer_jax.engine.units.Programs`. Used by one thread only.
    """

    def __init__(
        self,
        config: TextConfig,
        model: ProgramModel,
        weights: ProgramWeights,
        shape: ProgramShape,
        dtype: jnp.dtype,
        device: jax.Device,
    ):
        if shape.pages < 1 or shape.slots < 1:
            raise ConfigError("the memory plan leaves no KV page or no state slot")
        self.shape = shape
        self.lane_buckets = shape.lane_buckets
        self.prefill_chunk = shape.prefill_buckets[-1]
        self._model = model
        self._weights = weights
        self._options = compiler_options(device.platform)
        self._sharding = jax.sharding.SingleDeviceSharding(device)
        sizes, drafter = StateShape(shape.pages, shape.slots, model.codec, dtype), model.drafter
        spec = DeviceState(
            decoder=state_spec(config, sizes),
            counts=jax.ShapeDtypeStruct((shape.slots, config.addressable_ids), jnp.int32),
        )
        self.drafting = Drafting()
        if drafter is not None:
            spec = spec.replace(
                log=log_spec(config, drafter, shape.slots, dtype),
                drafter=drafter.state_spec(config, sizes),
            )
            self.drafting = Drafting(drafter.name, drafter.draft_tokens, drafter.lag)
        self._hidden = jax.ShapeDtypeStruct((1, config.hidden_size), dtype, sharding=self._sharding)
        self._spec = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._sharding), spec
        )
        self._state = jax.device_put(zero_state(spec), self._sharding)
        self._compiled: dict[tuple, Callable] = {}
        self._counter = CompileCounter()

    @property
    def recompilations(self) -> int:
        """Backend compilations since `compile` returned."""
        return self._counter.count

    def _jitted(self) -> dict[tuple, tuple[Callable, tuple]]:
        """Every program with its abstract inputs behind weights and state."""
        shape = self.shape

        def array(dims, dtype):
            return jax.ShapeDtypeStruct(dims, dtype, sharding=self._sharding)

        def rows(count):
            width = HEADER + shape.table_width
            return array((count, width), jnp.int32), array((count, len(FLOATS)), jnp.float32)

        programs = {}
        for columns in shape.prefill_buckets:
            run = functools.partial(prefill, self._model)
            programs["prefill", columns] = run, (array((1, columns), jnp.int32), *rows(1))
        for greedy in (True, False):
            run = functools.partial(first_token, self._model, greedy)
            programs["first", greedy] = run, (self._hidden, *rows(1))
            for lanes in shape.lane_buckets:
                run = functools.partial(
                    decode_rounds, self._model, greedy, shape.rounds_per_dispatch
                )
                if self._model.drafter is not None:
                    run = functools.partial(
                        drafted_rounds,
                        self._model,
                        greedy,
                        shape.rounds_per_dispatch,
                        shape.max_context,
                    )
                programs["decode", lanes, greedy] = run, (*rows(lanes), array((), jnp.int32))
        return programs

    def compile(self, log: Callable[[str], None]) -> None:
        """Compiles everything, then starts counting recompilations."""
        started = time.monotonic()
        weights = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._sharding),
            self._weights,
        )
        # Tracing needs the interpreter, compiling does not: one thread traces ahead.
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as compilers:
            pending = {}
            for key, (run, inputs) in self._jitted().items():
                jitted = jax.jit(run, donate_argnums=(1,))
                lowered = jitted.lower(weights, self._spec, *inputs)
                pending[key] = compilers.submit(lowered.compile, compiler_options=self._options)
            self._compiled = {key: program.result() for key, program in pending.items()}
        seconds = time.monotonic() - started
        log(f"compiled {len(self._compiled)} programs | {seconds:.1f}s")
        self._counter.arm()

    def compiled(self, *key) -> jax.stages.Compiled:
        """A compiled program, for tests and tools that look at its HLO and memory."""
        return self._compiled[key]

    def _run(self, key: tuple, *inputs):
        placed = jax.device_put(inputs, self._sharding)
        result, self._state = self._compiled[key](self._weights, self._state, *placed)
        return result

    def _fill(
        self,
        integers: np.ndarray,
        floats: np.ndarray,
        row: int,
        pages: Sequence[int],
        sampling: SamplingParams,
        pending: Pending,
        **fields: int,
    ) -> None:
        seed = sampling.seed % (1 << 64)
        fields |= {
            "fold": pending.fold,
            "absorb": pending.absorb,
            "top_k": sampling.top_k or 20,
            "seed_high": _signed(seed >> 32),
            "seed_low": _signed(seed & 0xFFFFFFFF),
        }
        integers[row, : len(INTEGERS)] = [fields.get(name, 0) for name in INTEGERS]
        integers[row, HEADER : HEADER + len(pages)] = pages
        floats[row] = (
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        )

    def _rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Packed inputs of inactive rows: slot out of range, length 0, no stop ids."""
        integers = np.zeros((count, HEADER + self.shape.table_width), np.int32)
        integers[:, 0] = self.shape.slots
        integers[:, len(INTEGERS) : HEADER] = -2
        floats = np.zeros((count, len(FLOATS)), np.float32)
        return integers, floats

    def prefill(self, unit: PrefillUnit) -> PendingToken:
        """See `Programs.prefill`."""
        length = len(unit.tokens)
        columns = next(size for size in self.shape.prefill_buckets if size >= length)
        ids = np.zeros((1, columns), np.int32)
        ids[0, :length] = unit.tokens
        integers, floats = self._rows(1)
        self._fill(
            integers,
            floats,
            0,
            unit.pages,
            unit.sampling,
            unit.pending,
            slot=unit.slot,
            position=unit.start,
            length=length,
            fresh=int(unit.fresh),
        )
        hidden = self._run(("prefill", columns), ids, integers, floats)
        if not unit.sample:
            return PendingToken(hidden, sample=False)
        token = self._run(("first", unit.sampling.greedy), hidden, integers, floats)
        token.copy_to_host_async()
        return PendingToken(token, sample=True)

    def decode(
        self, rows: Sequence[DecodeRow], rounds: int
    ) -> PendingRounds | PendingDraftedRounds:
        """See `Programs.decode`."""
        lanes = next(size for size in self.lane_buckets if size >= len(rows))
        integers, floats = self._rows(lanes)
        for index, row in enumerate(rows):
            self._fill(
                integers,
                floats,
                index,
                row.pages,
                row.sampling,
                row.pending,
                slot=row.slot,
                token=row.token,
                position=row.position,
                length=1,
                limit=row.limit,
            )
            stops = sorted(row.stop_token_ids)
            if len(stops) > STOP_TOKENS:
                raise ConfigError(f"{len(stops)} stop token ids, at most {STOP_TOKENS} are allowed")
            integers[index, len(INTEGERS) : len(INTEGERS) + len(stops)] = stops
        greedy = all(row.sampling.greedy for row in rows)
        table = self._run(("decode", lanes, greedy), integers, floats, np.int32(rounds))
        table.copy_to_host_async()
        if self._model.drafter is None:
            return PendingRounds(table, len(rows))
        return PendingDraftedRounds(table, len(rows), self.drafting.draft_tokens + 1)

    def release(self, slot: int) -> None:
        """See `Programs.release`: nothing to do, a fresh sequence never reads its slot."""
