"""The ops on a paged cache: write new columns, attend to live ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ninfer_jax.pallas.paged_attention import reference
from ninfer_jax.quantization.kv import KvCodec, Planes


def write_pages(
    pool: Planes,
    codec: KvCodec,
    rows: Float[Array, "B T G E"],
    block_table: Int[Array, "B M"],
    start: Int[Array, "B"],
    length: Int[Array, "B"],
) -> Planes:
    """Stores live columns at their cache positions, in place when the pool is donated.

    Columns at or behind `length[b]` are dropped: their page index is set out of range.
    Worked example: start 130, column 0 -> position 130 -> table entry 2, offset 2.
    """
    pages = jax.tree.leaves(pool)[0].shape[0]
    column = jnp.arange(rows.shape[1])
    position = start[:, None] + column
    entry = jnp.clip(position // reference.PAGE, 0, block_table.shape[1] - 1)
    page = jnp.take_along_axis(block_table, entry, axis=1)
    page = jnp.where(column < length[:, None], page, pages)
    offset = position % reference.PAGE
    with jax.named_scope("kv_write"):
        encoded = codec.encode(rows)
        return {
            name: plane.at[page, :, offset].set(encoded[name], mode="drop")
            for name, plane in pool.items()
        }


def paged_attention(
    query: Float[Array, "B T H E"],
    keys: Planes,
    values: Planes,
    codec: KvCodec,
    block_table: Int[Array, "B M"],
    start: Int[Array, "B"],
    length: Int[Array, "B"],
) -> Float[Array, "B T H E"]:
    """Causal attention of new columns over the pages of each row; see the reference."""
    with jax.named_scope("paged_attention"):
        return reference.paged_attention(query, keys, values, codec, block_table, start, length)
