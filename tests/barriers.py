"""Whether this jax keeps an `optimization_barrier` on CPU until everything is fused.

The oldest supported one drops it early. There a fold rounds by another contraction than a single
step on CPUs with AVX-512, and the replay log is copied in a round: slower and not the same bits,
but right.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


@functools.cache
def keeps_barriers() -> bool:
    """True if a product behind a barrier stays apart from the sum that takes it."""

    def run(x):
        return jax.lax.optimization_barrier(x * x) + x * 3

    compiled = jax.jit(run).lower(jnp.ones((16, 64))).compile()
    return compiled.as_text().count(" fusion(") > 1
