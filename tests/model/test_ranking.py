"""The best few of many scores: their order, and that nobody sorts all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.model.compilation import compiler_options
from ninfer_jax.model.ranking import best


@pytest.mark.parametrize("shape", [(5, 40), (2, 3, 40), (40,)])
@pytest.mark.parametrize("count", [1, 4, 40])
def test_order_is_by_score_then_by_column(shape, count):
    rng = np.random.RandomState(3)
    # Few different numbers, both zeros and both infinities: ties everywhere.
    scores = rng.choice(np.array([-np.inf, -1, -0.0, 0.0, 2, np.inf], np.float32), shape)
    values, columns = jax.jit(best, static_argnums=1)(jnp.asarray(scores), count)
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :count]
    np.testing.assert_array_equal(columns, order)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, order, axis=-1))


@pytest.mark.parametrize("shape", [(7, 993), (1, 7, 993)])
def test_a_loop_does_not_sort_all_scores(shape):
    def body(carry):
        done, scores, total = carry
        values, columns = best(scores, 4)
        return done + 1, scores - values[..., :1], total + jnp.sum(columns)

    def run(scores, rounds):
        return jax.lax.while_loop(lambda carry: carry[0] < rounds, body, (0, scores, 0))[2]

    scores = jax.ShapeDtypeStruct(shape, jnp.float32)
    text = jax.jit(run).lower(scores, 5).compile(compiler_options=compiler_options("cpu")).as_text()
    assert "TopK" in text
    assert " sort(" not in text
