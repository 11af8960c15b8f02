"""Causal attention over a paged cache in plain jnp: the semantics, and the CPU path.

Walks tiles of pages up to the longest live length of the batch with a dynamic trip count;
it never gathers a whole block table. A tile that lies wholly behind a row's last key adds
exact zeros to that row's sums, so a row's result does not depend on its neighbours.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ninfer_jax.quantization.kv import KvCodec, Planes

PAGE = 64
TILE_PAGES = 4
TILE = PAGE * TILE_PAGES


@functools.partial(jax.jit, static_argnames="codec")
def paged_attention(
    query: Float[Array, "B T H E"],
    keys: Planes,
    values: Planes,
    codec: KvCodec,
    block_table: Int[Array, "B M"],
    start: Int[Array, "B"],
    length: Int[Array, "B"],
) -> Float[Array, "B T H E"]:
    """`softmax(q k / sqrt(E)) v` for T new columns per row, f32.

    Args:
      query: column t of row b stands at cache position `start[b] + t`.
      keys, values: planes [P, G, 64, X]; the new columns are already written.
      codec: how rows are stored.
      block_table: page of positions 64 m .. 64 m + 63 of row b; entries behind the last live
        page may hold any number.
      start: cache position of column 0.
      length: live columns of the row, 0..T; columns behind it get arbitrary finite numbers.

    Returns:
      [B, T, H, E]. Rows behind the last live position are masked by selection, so they may
      hold NaN.
    """
    batch, columns, heads, width = query.shape
    pages, groups = jax.tree.leaves(keys)[0].shape[:2]
    sharing = heads // groups
    # The query heads that share a key/value head become rows of one product:
    # [B, T, G, R, E] -> [B, G, R T, E].
    grouped = jnp.moveaxis(query.reshape(batch, columns, groups, sharing, width), 1, 3)
    grouped = grouped.reshape(batch, groups, sharing * columns, width)
    position = jnp.tile(start[:, None] + jnp.arange(columns), (1, sharing))
    end = start + length
    tiles = (jnp.max(jnp.where(length > 0, end, 0)) + TILE - 1) // TILE
    scale = jnp.float32(width) ** -0.5
    table = jnp.pad(block_table, ((0, 0), (0, -block_table.shape[1] % TILE_PAGES)))

    def load(pool: Planes, page: jax.Array) -> jax.Array:
        tile = codec.decode({name: plane[page] for name, plane in pool.items()})
        # [B, TILE_PAGES, G, 64, E] -> [B, G, TILE, E]
        return jnp.moveaxis(tile, 2, 1).reshape(batch, groups, TILE, width)

    def product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum(
            equation,
            left,
            right,
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )

    def body(carry):
        index, maximum, total, out = carry
        page = jax.lax.dynamic_slice_in_dim(table, index * TILE_PAGES, TILE_PAGES, axis=1)
        page = jnp.clip(page, 0, pages - 1)
        key_position = index * TILE + jnp.arange(TILE)
        live = key_position < end[:, None]
        key = load(keys, page).astype(query.dtype)
        value = jnp.where(live[:, None, :, None], load(values, page), 0.0).astype(query.dtype)
        seen = live[:, None, :] & (key_position <= position[..., None])
        scores = scale * product("bgqe,bgse->bgqs", grouped, key)
        scores = jnp.where(seen[:, None], scores, -jnp.inf)
        highest = jnp.maximum(maximum, jnp.max(scores, axis=-1))
        # Before a row has seen any key its maximum is -inf; 0 stands in to avoid inf - inf.
        base = jnp.where(jnp.isfinite(highest), highest, 0.0)
        shrink = jnp.exp(maximum - base)
        weights = jnp.exp(scores - base[..., None])
        total = total * shrink + jnp.sum(weights, axis=-1)
        weighted = product("bgqs,bgse->bgqe", weights.astype(query.dtype), value)
        return index + 1, highest, total, out * shrink[..., None] + weighted

    shape = (batch, groups, sharing * columns)
    carry = (
        jnp.int32(0),
        jnp.full(shape, -jnp.inf, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, width), jnp.float32),
    )
    _, _, total, out = jax.lax.while_loop(lambda carry: carry[0] < tiles, body, carry)
    out = out / jnp.where(total > 0, total, 1.0)[..., None]
    out = out.reshape(batch, groups, sharing, columns, width)
    return jnp.moveaxis(out, 3, 1).reshape(batch, columns, heads, width)
