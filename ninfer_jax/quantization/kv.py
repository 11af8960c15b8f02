"""Codecs of the KV cache: how a head row is stored and what is attended.

What is attended is what is stored: keys and values go through the codec before they are
used, also within the call that writes them. A codec describes planes (name, width per row,
integer or float type); pools hold one array `[pages, heads, 64, width]` per plane.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Planes = dict[str, jax.Array]


class KvCodec(Protocol):
    """Stores rows of E numbers."""

    name: str

    def planes(self, width: int) -> dict[str, tuple[int, jnp.dtype]]:
        """Plane name -> (elements per row, type) for head width `width`."""
        ...

    def encode(self, rows: Float[Array, "... E"]) -> Planes:
        """Each plane [..., elements]."""
        ...

    def decode(self, planes: Planes) -> Float[Array, "... E"]:
        """The represented rows, f32."""
        ...


class Bf16Codec:
    """Rows as BF16, kept as their bit patterns.

    Bits, because a BF16 scatter on CPU converts the whole pool to f32 and back on the oldest
    supported jax.
    """

    name = "bf16"

    def planes(self, width: int) -> dict[str, tuple[int, jnp.dtype]]:
        """See `KvCodec.planes`."""
        return {"bits": (width, jnp.dtype(jnp.uint16))}

    def encode(self, rows: Float[Array, "... E"]) -> Planes:
        """See `KvCodec.encode`."""
        return {"bits": jax.lax.bitcast_convert_type(rows.astype(jnp.bfloat16), jnp.uint16)}

    def decode(self, planes: Planes) -> Float[Array, "... E"]:
        """See `KvCodec.decode`."""
        bits = jax.lax.bitcast_convert_type(planes["bits"], jnp.bfloat16)
        return bits.astype(jnp.float32)


class F32Codec:
    """Rows as they are, for comparisons with an f32 reference."""

    name = "f32"

    def planes(self, width: int) -> dict[str, tuple[int, jnp.dtype]]:
        """See `KvCodec.planes`."""
        return {"rows": (width, jnp.dtype(jnp.float32))}

    def encode(self, rows: Float[Array, "... E"]) -> Planes:
        """See `KvCodec.encode`."""
        return {"rows": rows.astype(jnp.float32)}

    def decode(self, planes: Planes) -> Float[Array, "... E"]:
        """See `KvCodec.decode`."""
        return planes["rows"]


CODECS: dict[str, KvCodec] = {codec.name: codec for codec in (Bf16Codec(), F32Codec())}
