"""The compiled steps update a pool of 256 MB in place.

Nothing of that size is allocated: the programs are compiled against shapes.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

from ninfer_jax.engine import programs as module
from ninfer_jax.engine.programs import DevicePrograms, ProgramShape
from ninfer_jax.engine.rounds import ProgramModel, ProgramWeights
from ninfer_jax.model.decoder import build_decoder
from ninfer_jax.model.state import StateShape, state_bytes, state_spec
from ninfer_jax.model.weights import as_weights
from ninfer_jax.quantization.kv import CODECS
from tests.model.building import small_model

SHAPE = ProgramShape(
    pages=16384,
    slots=4,
    max_context=4096,
    lane_buckets=(4,),
    prefill_buckets=(64,),
    rounds_per_dispatch=8,
)
PROGRAMS = [("prefill", 64), ("decode", 4, True), ("decode", 4, False)]
CONFIG = small_model().config
DTYPE = jnp.dtype(jnp.bfloat16)


@pytest.fixture(scope="module")
def compiled():
    """The programs in the types that serving uses, with no state behind them."""
    graph, specs = build_decoder(CONFIG, DTYPE)
    weights = as_weights(specs, small_model().arrays_as_jax(), DTYPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "zero_state", lambda spec: {})
        programs = DevicePrograms(
            CONFIG,
            ProgramModel(graph, CODECS["bf16"]),
            ProgramWeights(weights),
            SHAPE,
            DTYPE,
            jax.devices("cpu")[0],
        )
    programs.compile(print)
    return programs


def pool_bytes() -> int:
    spec = state_spec(CONFIG, StateShape(SHAPE.pages, SHAPE.slots, CODECS["bf16"], DTYPE))
    pools = [layer for layer in spec.layers if hasattr(layer, "keys")]
    return sum(state_bytes(pool) for pool in pools)


def test_the_pool_is_large():
    assert pool_bytes() >= 256 * 2**20


@pytest.mark.parametrize("key", PROGRAMS, ids=str)
def test_pools_are_aliased_and_never_copied(compiled, key):
    program, pool = compiled.compiled(*key), pool_bytes()
    memory = program.memory_analysis()
    print(
        f"{key}: pool {pool / 2**20:.0f} MiB, alias {memory.alias_size_in_bytes / 2**20:.0f} MiB, "
        f"temporaries {memory.temp_size_in_bytes / 2**20:.2f} MiB"
    )
    assert memory.alias_size_in_bytes >= pool
    assert memory.temp_size_in_bytes <= 0.05 * pool
    shape = rf"\[{SHAPE.pages},{CONFIG.num_key_value_heads},64,{CONFIG.head_dim}\]"
    text = program.as_text()
    assert re.search(rf"u16{shape}", text), "the pool's shape as the program names it"
    copies = re.findall(rf"= \w+{shape}\S* (?:copy|convert|transpose)\(.*", text)
    assert not copies, copies
    # A pool in another type would be a conversion of the whole pool hidden in a fusion.
    others = set(re.findall(rf"(\w+){shape}", text)) - {"u16"}
    assert not others, others
