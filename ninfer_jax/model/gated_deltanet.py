"""Gated DeltaNet: the linear-attention mixer of three layers in four.

A short causal convolution, the gated delta rule on a matrix state per value head
(`ninfer_jax/model/delta_rule.py`), and an output norm gated by SiLU(z). Where the state and
the last columns of the convolution live is the business of a `DeltaMemory`.
"""

from __future__ import annotations

from typing import Protocol, Self

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from ninfer_jax.model.config import TextConfig
from ninfer_jax.model.delta_rule import chunked_delta_rule, rule_inputs
from ninfer_jax.model.layers import Linear, PlainNorm
from ninfer_jax.model.weights import MatrixSpec, VectorSpec


class DeltaMemory(Protocol):
    """Keeps the recurrent and the convolution state of one layer."""

    def window(
        self, columns: Float[Array, "B T C"], taps: int
    ) -> tuple[Float[Array, "B T+3 C"], Self]:
        """The new raw columns behind the last `taps - 1` committed ones, which it advances."""
        ...

    def apply(self, q, k, v, g, beta) -> tuple[Float[Array, "B T H Dv"], Self]:
        """Runs the delta rule over the live columns from the kept state, which it advances.

        `q`, `k` [B, T, Hk, Dk] and `v` [B, T, H, Dv] are raw: behind the convolution, in the
        activation type, not normalised. `g`, `beta` [B, T, H] are f32.
        """
        ...


@flax.struct.dataclass
class FreshDelta:
    """A whole sequence from its start, nothing kept (training)."""

    chunk: int = flax.struct.field(pytree_node=False, default=32)

    def window(self, columns, taps):
        """See `DeltaMemory.window`."""
        return jnp.pad(columns, ((0, 0), (taps - 1, 0), (0, 0))), self

    def apply(self, q, k, v, g, beta):
        """See `DeltaMemory.apply`."""
        q, k, v = rule_inputs(q, k, v)
        batch, _, heads, key_width = k.shape
        state = jnp.zeros((batch, heads, v.shape[-1], key_width), jnp.float32)
        out, _ = chunked_delta_rule(q, k, v, g, beta, state, self.chunk)
        return out, self


def causal_convolution(
    window: Float[Array, "B T+3 C"], kernel: Float[Array, "taps C"]
) -> Float[Array, "B T C"]:
    """`SiLU(sum_j w[j] * u[t - 3 + j])`, taps oldest first, f32."""
    taps = kernel.shape[0]
    columns = window.shape[1] - taps + 1
    wide, kernel = window.astype(jnp.float32), kernel.astype(jnp.float32)
    mixed = sum(kernel[tap] * wide[:, tap : tap + columns] for tap in range(taps))
    return jax.nn.silu(mixed)


class GatedDeltaNet(nnx.Module):
    """Value head j is served by key head j // (value heads / key heads)."""

    def __init__(self, prefix: str, config: TextConfig):
        heads, width = config.linear_num_value_heads, config.hidden_size
        self.projection = Linear(
            MatrixSpec(
                tuple(f"{prefix}/{part}" for part in ("query", "key", "value", "z")),
                (
                    config.linear_key_width,
                    config.linear_key_width,
                    config.linear_value_width,
                    config.linear_value_width,
                ),
                width,
                ("heads", "model_width"),
            )
        )
        self.a_b = Linear(
            MatrixSpec(
                (f"{prefix}/a_projection", f"{prefix}/b_projection"),
                (heads, heads),
                width,
                (None, "model_width"),
            )
        )
        self.convolution = nnx.Param(
            VectorSpec(
                f"{prefix}/convolution",
                (config.linear_conv_kernel_dim, config.convolution_width),
                "fan_in",
            )
        )
        self.a_log = nnx.Param(VectorSpec(f"{prefix}/a_log", (heads,), "decay", True))
        self.dt_bias = nnx.Param(VectorSpec(f"{prefix}/dt_bias", (heads,), "time_step", True))
        self.norm = PlainNorm(f"{prefix}/norm", config.linear_value_head_dim, config.rms_norm_eps)
        self.output = Linear(
            MatrixSpec(
                (f"{prefix}/output",), (width,), config.linear_value_width, ("model_width", "heads")
            )
        )
        self.config = config

    def __call__(
        self, h: Float[Array, "B T D"], memory: DeltaMemory
    ) -> tuple[Float[Array, "B T D"], DeltaMemory]:
        config = self.config
        batch, columns, _ = h.shape
        raw, z = jnp.split(self.projection(h), [config.convolution_width], axis=-1)
        window, memory = memory.window(raw, config.linear_conv_kernel_dim)
        mixed = causal_convolution(window, self.convolution.get_value()).astype(h.dtype)
        key_width = config.linear_key_width
        q, k, v = jnp.split(mixed, [key_width, 2 * key_width], axis=-1)
        key_heads = (batch, columns, config.linear_num_key_heads, config.linear_key_head_dim)
        value_heads = (batch, columns, config.linear_num_value_heads, config.linear_value_head_dim)
        q, k, v = q.reshape(key_heads), k.reshape(key_heads), v.reshape(value_heads)
        a, b = jnp.split(self.a_b(h, jnp.float32), 2, axis=-1)
        beta = jax.nn.sigmoid(b)
        g = -jnp.exp(self.a_log.get_value()) * jax.nn.softplus(a + self.dt_bias.get_value())
        out, memory = memory.apply(q, k, v, g, beta)
        gated = self.norm(out) * jax.nn.silu(z.reshape(value_heads).astype(jnp.float32))
        return self.output(gated.astype(h.dtype).reshape(batch, columns, -1)), memory
