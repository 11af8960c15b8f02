"""The gated delta rule: one step per token, and the chunked form of the same map.

Per value head, with state `S [value, key]`, everything f32:

    S   <- exp(g_t) S
    e   =  beta_t (v_t - S k_t)
    S   <- S + e k_t^T
    o_t =  S q_t

`q` is already scaled by 1/sqrt(key width); `q`, `k` are l2-normalised (`rule_inputs`). A column
with g = 0 and beta = 0 leaves the state unchanged: that is how padding columns are made inert.

The two forms are jitted on their own so that a program with many layers traces and lowers
each of them once; the compiler inlines them.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

HIGHEST = jax.lax.Precision.HIGHEST
SMALL_BLOCK = 8
CHUNK = 32
"""Tokens per chunk. On CPU 32 is faster than 64 (fewer operations in the inverse) and than 16
(fewer steps of the scan)."""


def l2_normalize(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """`x * rsqrt(sum x^2 + 1e-6)` in f32."""
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)


def rule_inputs(
    q: Float[Array, "B T Hk Dk"], k: Float[Array, "B T Hk Dk"], v: Float[Array, "B T H Dv"]
) -> tuple[Float[Array, "B T H Dk"], Float[Array, "B T H Dk"], Float[Array, "B T H Dv"]]:
    """The rule's inputs from the raw columns behind the convolution.

    Normalised, `q` scaled, each key head repeated for the value heads that it serves, f32.
    """
    return rule_key(q, v.shape[2]) * q.shape[-1] ** -0.5, rule_key(k, v.shape[2]), rule_value(v)


def rule_key(k: Float[Array, "... Hk Dk"], heads: int) -> Float[Array, "... H Dk"]:
    """Raw keys as the rule takes them: value head j reads key head j // (H / Hk).

    The barrier keeps the compiler from merging what made `k` into the norm, which would round
    its sum another way than the norm of a recorded `k`.
    """
    k = jax.lax.optimization_barrier(k)
    return jnp.repeat(l2_normalize(k), heads // k.shape[-2], axis=-2)


def rule_value(v: Float[Array, "... H Dv"]) -> Float[Array, "... H Dv"]:
    """Raw values as the rule takes them."""
    return v.astype(jnp.float32)


def rule_decay(g: Float[Array, "... H"]) -> Float[Array, "... H"]:
    """`exp(g)` of all columns at once.

    Inside the loop over columns the compiler takes the exponential of one number or of a
    vector of them, by the size of the batch, and the two differ in the last bit.
    """
    return jax.lax.optimization_barrier(jnp.exp(g))


def delta_update(
    state: Float[Array, "B H Dv Dk"],
    k: Float[Array, "B H Dk"],
    v: Float[Array, "B H Dv"],
    decay: Float[Array, "B H"],
    beta: Float[Array, "B H"],
) -> Float[Array, "B H Dv Dk"]:
    """One token's change of the state: of every step, and of the fold of recorded tokens.

    `decay` is exp(g), see `rule_decay`. Written as products and sums over the last axis, so that
    a row's arithmetic does not depend on which other rows are in the batch. The barrier leaves
    one product for the last sum: of two, the compiler fuses one or the other into the addition,
    by the size of the batch.
    """
    state = jax.lax.optimization_barrier(decay[..., None, None] * state)
    error = beta[..., None] * (v - jnp.sum(state * k[..., None, :], axis=-1))
    return state + error[..., None] * k[..., None, :]


def delta_step(
    state: Float[Array, "B H Dv Dk"],
    q: Float[Array, "B H Dk"],
    k: Float[Array, "B H Dk"],
    v: Float[Array, "B H Dv"],
    decay: Float[Array, "B H"],
    beta: Float[Array, "B H"],
) -> tuple[Float[Array, "B H Dv Dk"], Float[Array, "B H Dv"]]:
    """One token: returns the new state and the output. `decay` is exp(g)."""
    state = delta_update(state, k, v, decay, beta)
    return state, jnp.sum(state * q[..., None, :], axis=-1)


@jax.jit
def recurrent_delta_rule(
    q: Float[Array, "B T H Dk"],
    k: Float[Array, "B T H Dk"],
    v: Float[Array, "B T H Dv"],
    g: Float[Array, "B T H"],
    beta: Float[Array, "B T H"],
    state: Float[Array, "B H Dv Dk"],
    most: Int[Array, ""] | None = None,
) -> tuple[Float[Array, "B T H Dv"], Float[Array, "B H Dv Dk"]]:
    """The recurrence token by token: decode and verify.

    Walks to `most` columns (T if None); columns behind it give 0 and change nothing. As the
    number is not known to the compiler, every program runs the same loop: a loop of known
    length 1 is merged with what stands around it and rounds differently.
    """
    columns = (q, k, v, rule_decay(g), beta)
    columns = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), columns)
    most = jnp.int32(v.shape[1]) if most is None else most

    def body(carry):
        index, state, out = carry
        column = jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), columns
        )
        state, row = delta_step(state, *column)
        return index + 1, state, jax.lax.dynamic_update_index_in_dim(out, row, index, axis=0)

    carry = (jnp.int32(0), state, jnp.zeros(columns[2].shape, state.dtype))
    _, state, out = jax.lax.while_loop(lambda carry: carry[0] < most, body, carry)
    return jnp.moveaxis(out, 0, 1), state


@jax.custom_jvp
def unit_lower_inverse(strict: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    """`(I + A)^-1` for strictly lower triangular A, C a power of two.

    By halves: with P, Q the inverses of the diagonal blocks and M the block below,
    `[[P, 0], [-Q M P, Q]]`. All intermediate numbers are entries of true inverses, so nothing
    grows; a product of powers of A, the shorter form, loses every digit when many keys are
    equal.
    """
    size = strict.shape[-1]
    if size <= SMALL_BLOCK:
        return _small_inverse(strict)
    half = size // 2
    diagonal = jnp.stack([strict[..., :half, :half], strict[..., half:, half:]])
    first, second = unit_lower_inverse(diagonal)
    below = jnp.matmul(second, strict[..., half:, :half], precision=HIGHEST)
    below = -jnp.matmul(below, first, precision=HIGHEST)
    top = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([below, second], axis=-1)], axis=-2)


def _small_inverse(strict: jax.Array) -> jax.Array:
    """The same level by level without cutting blocks out, which for small C costs more.

    If X holds the inverses of the diagonal blocks of size s, then `X - X M X` holds those of
    size 2 s, M being A restricted to the blocks (odd, even).
    """
    size = strict.shape[-1]
    index = jnp.arange(size)
    inverse = jnp.broadcast_to(jnp.eye(size, dtype=strict.dtype), strict.shape)
    block = 1
    while block < size:
        row, column = index[:, None] // block, index[None, :] // block
        pair = (row % 2 == 1) & (column == row - 1)
        below = jnp.where(pair, strict, 0.0)
        if block == 1:
            inverse = inverse - below
        else:
            step = jnp.matmul(inverse, below, precision=HIGHEST)
            inverse = inverse - jnp.matmul(step, inverse, precision=HIGHEST)
        block *= 2
    return inverse


@unit_lower_inverse.defjvp
def _unit_lower_inverse_jvp(primals, tangents):
    """d X = -X dA X: two products instead of a walk back through every level."""
    inverse = unit_lower_inverse(*primals)
    step = jnp.matmul(inverse, tangents[0], precision=HIGHEST)
    return inverse, -jnp.matmul(step, inverse, precision=HIGHEST)


@functools.partial(jax.jit, static_argnames="chunk")
def chunked_delta_rule(
    q: Float[Array, "B T H Dk"],
    k: Float[Array, "B T H Dk"],
    v: Float[Array, "B T H Dv"],
    g: Float[Array, "B T H"],
    beta: Float[Array, "B T H"],
    state: Float[Array, "B H Dv Dk"],
    chunk: int = CHUNK,
) -> tuple[Float[Array, "B T H Dv"], Float[Array, "B H Dv Dk"]]:
    """The same map in chunks of `chunk` tokens (a power of two): prefill and training.

    T is padded to whole chunks with inert columns. Every exponent is <= 0 and is masked
    before `exp`, so neither the value nor its gradient can overflow.
    """
    columns = q.shape[1]
    padding = -columns % chunk
    if padding:
        q, k, v, g, beta = (
            jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
            for x in (q, k, v, g, beta)
        )

    def by_chunk(x):
        batch, length, heads = x.shape[:3]
        split = x.reshape(batch, length // chunk, chunk, heads, *x.shape[3:])
        return jnp.moveaxis(jnp.moveaxis(split, 3, 2), 1, 0)

    q, k, v, g, beta = map(by_chunk, (q, k, v, g, beta))  # [N, B, H, C, ...]
    total = jnp.cumsum(g, axis=-1)
    lower = jnp.tril(jnp.ones((chunk, chunk), bool))
    difference = total[..., :, None] - total[..., None, :]
    decay = jnp.exp(jnp.where(lower, difference, -jnp.inf))
    strict = jnp.tril(jnp.ones((chunk, chunk), bool), -1)
    keys = jnp.einsum("nbhik,nbhjk->nbhij", k, k, precision=HIGHEST)
    inverse = unit_lower_inverse(jnp.where(strict, beta[..., None] * keys * decay, 0.0))
    value = jnp.matmul(inverse, beta[..., None] * v, precision=HIGHEST)
    weight = jnp.matmul(inverse, (beta * jnp.exp(total))[..., None] * k, precision=HIGHEST)
    inside = jnp.einsum("nbhik,nbhjk->nbhij", q, k, precision=HIGHEST) * decay
    readout = jnp.exp(total)[..., None] * q
    last = total[..., -1]
    absorbed = jnp.exp(last[..., None] - total)[..., None] * k

    def body(state, chunk_terms):
        value, weight, inside, readout, absorbed, last = chunk_terms
        new = value - jnp.einsum("bhck,bhvk->bhcv", weight, state, precision=HIGHEST)
        out = jnp.einsum("bhck,bhvk->bhcv", readout, state, precision=HIGHEST)
        out = out + jnp.matmul(inside, new, precision=HIGHEST)
        state = jnp.exp(last)[..., None, None] * state + jnp.einsum(
            "bhcv,bhck->bhvk", new, absorbed, precision=HIGHEST
        )
        return state, out

    state, out = jax.lax.scan(body, state, (value, weight, inside, readout, absorbed, last))
    # [N, B, H, C, Dv] -> [B, T, H, Dv]
    out = jnp.moveaxis(jnp.moveaxis(out, 0, 1), 2, 3)
    out = out.reshape(out.shape[0], -1, *out.shape[3:])
    return out[:, :columns], state
