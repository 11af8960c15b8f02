"""The compiled steps update a pool of 256 MB in place, and everything else that they keep.

Nothing of that size is allocated: the programs are compiled against shapes.
"""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from ninfer_jax.engine import programs as module
from ninfer_jax.engine.programs import DevicePrograms, ProgramShape
from ninfer_jax.engine.rounds import ProgramModel, ProgramWeights
from ninfer_jax.model.decoder import build_decoder
from ninfer_jax.model.state import KvPool, state_bytes
from ninfer_jax.model.weights import as_weights
from ninfer_jax.quantization.kv import CODECS
from tests.barriers import keeps_barriers
from tests.engine.drafting import random_drafter
from tests.model.building import small_model

SHAPE = ProgramShape(
    pages=16384,
    slots=512,
    max_context=4096,
    lane_buckets=(4,),
    prefill_buckets=(64,),
    rounds_per_dispatch=8,
)
"""Many more slots than lanes: rings, log and counts are large beside what the rows read."""
DRAFTERS = [None, ("mtp", 4), ("dflash2", 7)]
PROGRAMS = [("prefill", 64), ("decode", 4, True)]
SAMPLED = ("decode", 4, False)
CASES = [(drafter, key) for drafter in DRAFTERS for key in PROGRAMS] + [(None, SAMPLED)]
"""Sampling needs nothing of the state beside what greedy programs need: it is looked at once."""
CONFIG = small_model().config
DTYPE = jnp.dtype(jnp.bfloat16)
CODEC = CODECS["bf16"]


class FewPrograms(DevicePrograms):
    """Only those that are looked at."""

    def _jitted(self):
        wanted = PROGRAMS if self._model.drafter else [*PROGRAMS, SAMPLED]
        return {key: program for key, program in super()._jitted().items() if key in wanted}


@functools.cache
def compiled(drafter: tuple[str, int] | None) -> DevicePrograms:
    """The programs in the types that serving uses, with no state behind them."""
    graph, specs = build_decoder(CONFIG, DTYPE)
    weights = as_weights(specs, small_model().arrays_as_jax(), DTYPE)
    static, drafts = random_drafter(*drafter, codec=CODEC, dtype=DTYPE) if drafter else (None, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "zero_state", lambda spec: {})
        programs = FewPrograms(
            CONFIG,
            ProgramModel(graph, CODEC, static),
            ProgramWeights(weights, drafts),
            SHAPE,
            DTYPE,
            jax.devices("cpu")[0],
        )
    programs.compile(print)
    return programs


def pools(programs: DevicePrograms) -> list[KvPool]:
    """The page pools of the decoder and of the MTP drafter."""
    spec = programs._spec
    return [one for one in (*spec.decoder.layers, spec.drafter) if isinstance(one, KvPool)]


@pytest.mark.parametrize("drafter", DRAFTERS, ids=str)
def test_the_pools_are_large(drafter):
    found = pools(compiled(drafter))
    assert len(found) == (2 if drafter and drafter[0] == "mtp" else 1)
    assert all(state_bytes(pool) >= 256 * 2**20 for pool in found)


@pytest.mark.parametrize(("drafter", "key"), CASES, ids=str)
def test_pools_are_aliased_and_never_copied(drafter, key):
    programs = compiled(drafter)
    program, pool = programs.compiled(*key), state_bytes(pools(programs)[0])
    memory = program.memory_analysis()
    print(
        f"{key}: pool {pool / 2**20:.0f} MiB, alias {memory.alias_size_in_bytes / 2**20:.0f} MiB, "
        f"temporaries {memory.temp_size_in_bytes / 2**20:.2f} MiB"
    )
    # Pools, recurrent states, counts, rings and log: every byte of the state.
    assert memory.alias_size_in_bytes >= state_bytes(programs._spec)
    assert memory.temp_size_in_bytes <= 0.05 * pool
    shape = rf"\[{SHAPE.pages},{CONFIG.num_key_value_heads},64,{CONFIG.head_dim}\]"
    text = program.as_text()
    assert re.search(rf"u16{shape}", text), "the pool's shape as the program names it"
    copies = re.findall(rf"= \w+{shape}\S* (?:copy|convert|transpose)\(.*", text)
    assert not copies, copies
    # A pool in another type would be a conversion of the whole pool hidden in a fusion.
    others = set(re.findall(rf"(\w+){shape}", text)) - {"u16"}
    assert not others, others


@pytest.mark.parametrize(("drafter", "key"), CASES, ids=str)
def test_what_a_slot_keeps_is_never_copied(drafter, key):
    """Counts, log and rings."""
    programs = compiled(drafter)
    spec, text = programs._spec, programs.compiled(*key).as_text()
    kept = [spec.counts, *(jax.tree.leaves(spec.log) if keeps_barriers() else ())]
    kept += [] if isinstance(spec.drafter, KvPool) else jax.tree.leaves(spec.drafter)
    for shape in {leaf.shape for leaf in kept}:
        dims = r"\[" + ",".join(map(str, shape)) + r"\]"
        assert re.search(rf"\w+{dims}", text), f"{shape} as the program names it"
        copies = re.findall(rf"= \w+{dims}\S* (?:copy|convert|transpose)\(.*", text)
        assert not copies, copies
