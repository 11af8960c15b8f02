"""The memory of the DFlash2 drafter: the last R context rows of every layer, per slot.

Row `p mod R` holds position p. With R = 4 and frontier 6 the rows hold 4, 5, 2, 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ninfer_jax.model.draft_config import DFlash2Config
from ninfer_jax.quantization.kv import KvCodec, Planes


@flax.struct.dataclass
class DraftRing:
    """Context keys and values of one drafter layer; planes [slots, R, G, X]."""

    keys: Planes
    values: Planes


def ring_spec(config: DFlash2Config, slots: int, codec: KvCodec) -> tuple[DraftRing, ...]:
    """The rings of all layers as `jax.ShapeDtypeStruct`s; `codec` must not lose anything."""

    def planes() -> Planes:
        shape = (slots, config.sliding_window, config.num_key_value_heads)
        return {
            name: jax.ShapeDtypeStruct((*shape, elements), dtype)
            for name, (elements, dtype) in codec.planes(config.head_dim).items()
        }

    return tuple(DraftRing(planes(), planes()) for _ in range(config.num_layers))


def append_rows(
    rings: Sequence[DraftRing],
    rows: Sequence[tuple[Float[Array, "B T G E"], Float[Array, "B T G E"]]],
    codec: KvCodec,
    slots: Int[Array, "B"],
    start: Int[Array, "B"],
    count: Int[Array, "B"],
) -> tuple[DraftRing, ...]:
    """Adds the first `count[b]` columns, whose positions begin at `start[b]`.

    Of more than R columns only the last R are written: two positions of one call never meet in
    one row.
    """
    window = jax.tree.leaves(rings[0])[0].shape[1]
    columns = rows[0][0].shape[1]
    column = jnp.arange(columns)
    written = (column < count[:, None]) & (column >= count[:, None] - window)
    row = jnp.where(written, (start[:, None] + column) % window, window)

    def write(planes: Planes, values: jax.Array) -> Planes:
        encoded = codec.encode(values)
        return {
            name: plane.at[slots[:, None], row].set(encoded[name], mode="drop")
            for name, plane in planes.items()
        }

    with jax.named_scope("ring_append"):
        return tuple(
            DraftRing(write(ring.keys, key), write(ring.values, value))
            for ring, (key, value) in zip(rings, rows, strict=True)
        )


def ring_rows(
    rings: Sequence[DraftRing], codec: KvCodec, slots: Int[Array, "B"]
) -> list[tuple[Float[Array, "B R G E"], Float[Array, "B R G E"]]]:
    """Keys and values of the named slots, f32."""

    def read(planes: Planes) -> jax.Array:
        return codec.decode(
            {name: plane.at[slots].get(mode="fill", fill_value=0) for name, plane in planes.items()}
        )

    return [(read(ring.keys), read(ring.values)) for ring in rings]


def seen_rows(
    frontier: Int[Array, "B"], positions: Int[Array, "B W"], window: int
) -> Bool[Array, "B W R"]:
    """Ring rows that hold a position p < frontier with `query - p < window`.

    Row r holds the largest p < frontier with p mod R = r, or nothing yet.
    """
    newest = frontier[:, None] - 1
    position = newest - (newest - jnp.arange(window)) % window
    live = position >= 0
    near = positions[..., None] - position[:, None] < window
    return live[:, None] & near
