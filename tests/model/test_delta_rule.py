"""The gated delta rule: published values, chunked against recurrent, the triangular inverse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.model.delta_rule import (
    chunked_delta_rule,
    delta_step,
    recurrent_delta_rule,
    unit_lower_inverse,
)
from tests.model.oracle import delta_rule, l2, sigmoid


def fill(shape: tuple[int, ...], a: float) -> np.ndarray:
    return np.sin(a * (1.0 + np.arange(np.prod(shape)))).reshape(shape)


def golden_inputs():
    """One head, width 2, three tokens: q, k, v, g, beta in float64."""
    q, k, v = l2(fill((3, 2), 0.7)) / np.sqrt(2), l2(fill((3, 2), 1.1)), fill((3, 2), 1.9)
    g = -0.8 * np.logaddexp(0.0, fill((3,), 0.5) + 0.3)
    return q, k, v, g, sigmoid(fill((3,), 0.9))


GOLDEN_G = [-0.92556016, -1.13488749, -1.23123236]
GOLDEN_BETA = [0.68639670, 0.72588575, 0.60524783]
GOLDEN_OUT = [[0.44443651, -0.28736337], [0.23901202, -0.31451071], [-0.09439038, 0.16382116]]
GOLDEN_STATE = [[0.09776113, 0.10454807], [0.43362806, -0.42426054]]


def test_the_oracle_gives_the_published_values():
    q, k, v, g, beta = golden_inputs()
    out, state = delta_rule(q, k, v, g, beta)
    np.testing.assert_allclose(g, GOLDEN_G, atol=5e-9)
    np.testing.assert_allclose(beta, GOLDEN_BETA, atol=5e-9)
    np.testing.assert_allclose(out, GOLDEN_OUT, atol=5e-9)
    np.testing.assert_allclose(state, GOLDEN_STATE, atol=5e-9)


@pytest.mark.parametrize("rule", [recurrent_delta_rule, chunked_delta_rule])
def test_published_values(rule):
    inputs = [jnp.asarray(x, jnp.float32)[None, :, None] for x in golden_inputs()]
    out, state = rule(*inputs, jnp.zeros((1, 1, 2, 2)))
    np.testing.assert_allclose(out[0, :, 0], GOLDEN_OUT, atol=2e-7)
    np.testing.assert_allclose(state[0, 0], GOLDEN_STATE, atol=2e-7)


def random_inputs(seed: int, columns: int, kind: str):
    """q, k, v, g, beta, state for 2 rows, 3 heads, key width 16, value width 8, float64."""
    random = np.random.RandomState(seed)
    q = l2(random.randn(2, columns, 3, 16)) / 4
    k = l2(random.randn(2, columns, 3, 16))
    v = random.randn(2, columns, 3, 8)
    beta = sigmoid(random.randn(2, columns, 3))
    g = -np.exp(random.uniform(-7, 0, (2, columns, 3)))
    if kind == "strong decay":
        # A chunk's decay passes exp(-88), the smallest f32, many times over.
        g = -random.uniform(2, 30, (2, columns, 3))
    if kind == "equal keys":
        k = np.broadcast_to(k[:, :1], k.shape).copy()
        g = np.full_like(g, -1e-6)
        beta = np.full_like(beta, 0.999)
    if kind == "mixed decay":
        g = np.where(random.rand(*g.shape) < 0.1, -40.0, g * 1e-3)
    return q, k, v, g, beta, random.randn(2, 3, 8, 16)


KINDS = ("ordinary", "strong decay", "equal keys", "mixed decay")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 63, 64, 65, 200])
def test_chunked_equals_recurrent_in_f32(kind, columns):
    inputs = [jnp.asarray(x, jnp.float32) for x in random_inputs(columns, columns, kind)]
    out, state = recurrent_delta_rule(*inputs)
    other_out, other_state = chunked_delta_rule(*inputs)
    print(kind, columns, float(jnp.abs(out - other_out).max()))
    # Slow steps behind fast ones: the chunk's exponents are differences of large sums.
    tolerance = 1e-4 if kind == "mixed decay" else 1e-5
    np.testing.assert_allclose(other_out, out, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(other_state, state, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("columns", "chunk"), [(130, 64), (77, 32), (77, 1)])
def test_chunked_equals_recurrent_in_f64(kind, columns, chunk):
    with jax.enable_x64(True):
        inputs = [jnp.asarray(x, jnp.float64) for x in random_inputs(5, columns, kind)]
        out, state = recurrent_delta_rule(*inputs)
        other_out, other_state = chunked_delta_rule(*inputs, chunk=chunk)
        assert out.dtype == jnp.float64
        np.testing.assert_allclose(other_out, out, atol=1e-13)
        np.testing.assert_allclose(other_state, state, atol=1e-13)


def test_inert_columns_change_nothing():
    """Columns of g = 0 and beta = 0 behind the live ones: the state keeps every bit."""
    for rule in (recurrent_delta_rule, chunked_delta_rule):
        inputs = [jnp.asarray(x, jnp.float32) for x in random_inputs(1, 70, "ordinary")]
        *columns, state = inputs
        dead = [
            jnp.pad(x, ((0, 0), (0, 58), *((0, 0),) * (x.ndim - 2)), constant_values=value)
            for x, value in zip(columns, (3.0, 5.0, 7.0, 0.0, 0.0), strict=True)
        ]
        out, new = rule(*columns, state)
        padded_out, padded_new = rule(*dead, state)
        np.testing.assert_array_equal(padded_out[:, :70], out)
        np.testing.assert_array_equal(padded_new, new)


def strict_matrices(kind: str, size: int) -> np.ndarray:
    """Strictly lower matrices as the delta rule makes them."""
    random = np.random.RandomState(size)
    k = l2(random.randn(4, size, 16))
    if kind == "equal keys":
        k = np.broadcast_to(k[:, :1], k.shape)
    if kind == "alternating keys":
        k = k[:, :1] * np.where(np.arange(size) % 2, -1.0, 1.0)[:, None]
    return np.tril(0.999 * k @ np.swapaxes(k, 1, 2), -1)


@pytest.mark.parametrize("size", [1, 2, 8, 64, 128])
@pytest.mark.parametrize("kind", ["random keys", "equal keys", "alternating keys"])
def test_unit_lower_inverse(kind, size):
    strict = strict_matrices(kind, size)
    expected = np.linalg.inv(np.eye(size) + strict)
    inverse = jax.jit(unit_lower_inverse)(jnp.asarray(strict, jnp.float32))
    np.testing.assert_allclose(inverse, expected, atol=2e-5)
    with jax.enable_x64(True):
        inverse = unit_lower_inverse(jnp.asarray(strict, jnp.float64))
        np.testing.assert_allclose(inverse, expected, atol=1e-12)


def test_unit_lower_inverse_jvp():
    """Against central differences, and the reverse mode against the forward one."""
    random = np.random.RandomState(0)
    with jax.enable_x64(True):
        strict = jnp.asarray(strict_matrices("random keys", 16))
        tangent = jnp.tril(jnp.asarray(random.randn(*strict.shape)), -1)
        value, derivative = jax.jvp(unit_lower_inverse, (strict,), (tangent,))
        step = 1e-6
        ahead, behind = (unit_lower_inverse(strict + sign * step * tangent) for sign in (1, -1))
        np.testing.assert_allclose(derivative, (ahead - behind) / (2 * step), atol=1e-8)
        weight = jnp.asarray(random.randn(*strict.shape))
        gradient = jax.grad(lambda x: jnp.sum(unit_lower_inverse(x) * weight))(strict)
        product = float(jnp.sum(gradient * tangent))
        assert product == pytest.approx(float(jnp.sum(derivative * weight)), abs=1e-10)
        np.testing.assert_allclose(value, jnp.linalg.inv(jnp.eye(16) + strict), atol=1e-12)


def scanned(q, k, v, g, beta, state):
    """The recurrence as a scan, which can be differentiated."""
    columns = [jnp.moveaxis(x, 1, 0) for x in (q, k, v, jnp.exp(g), beta)]
    state, out = jax.lax.scan(lambda kept, column: delta_step(kept, *column), state, columns)
    return jnp.moveaxis(out, 0, 1), state


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_and_are_finite(kind):
    """Of the chunked form against the recurrence, also where decays underflow."""
    inputs = [jnp.asarray(x, jnp.float32) for x in random_inputs(3, 40, kind)]

    def loss(rule):
        def value(*inputs):
            out, state = rule(*inputs)
            return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.sin(state))

        return jax.grad(value, argnums=range(6))

    gradients = loss(lambda *x: chunked_delta_rule(*x, chunk=32))(*inputs)
    for ours, other in zip(gradients, loss(scanned)(*inputs), strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, other, atol=2e-4, rtol=2e-4)
