"""The text decoder in NumPy float64, as slow and as plain as it can be written.

An independent reading of `docs/model.md` section 1: it takes the tensors of a Hugging Face
checkpoint and shares no code with the package. Recurrent delta rule, dense attention, one
sequence from its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def l2(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def rotate(x: np.ndarray, positions: np.ndarray, rope: Mapping[str, Any]) -> np.ndarray:
    """Rotates one head vector per token; x [T, heads, E], positions [3, T]."""
    out = x.copy()
    width = round(x.shape[-1] * rope["partial_rotary_factor"])
    half = width // 2
    _, height, wide = rope["mrope_section"]
    for pair in range(half):
        axis = 0
        if pair % 3 == 1 and pair < 3 * height:
            axis = 1
        elif pair % 3 == 2 and pair < 3 * wide:
            axis = 2
        angle = positions[axis] * float(rope["rope_theta"]) ** (-2.0 * pair / width)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        first, second = x[..., pair], x[..., pair + half]
        out[..., pair] = first * cos - second * sin
        out[..., pair + half] = second * cos + first * sin
    return out


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One head over T tokens from the zero state: outputs [T, Dv], state [Dv, Dk].

    `k` is normalised, `q` normalised and scaled.
    """
    state = np.zeros((v.shape[-1], k.shape[-1]))
    out = []
    for t in range(len(q)):
        state = np.exp(g[t]) * state
        error = beta[t] * (v[t] - state @ k[t])
        state = state + np.outer(error, k[t])
        out.append(state @ q[t])
    return np.array(out), state


class OracleDecoder:
    """Runs one sequence.

    Attributes:
      mixers: mixer output of each layer of the last call, [T, D].
      states: final [heads, Dv, Dk] of each Gated DeltaNet layer of the last call.
      raw_columns: all raw projected columns of each Gated DeltaNet layer, [T, C].
      keys, values: of each full-attention layer, [T, G, E].
    """

    def __init__(self, component: Mapping[str, Any], tensors: Mapping[str, np.ndarray]):
        self.config = component
        self.tensors = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
        self.mixers: dict[int, np.ndarray] = {}
        self.states: dict[int, np.ndarray] = {}
        self.raw_columns: dict[int, np.ndarray] = {}
        self.keys: dict[int, np.ndarray] = {}
        self.values: dict[int, np.ndarray] = {}

    def __call__(self, ids: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ids [T], positions [3, T] -> (residual stream [T, D], logits [T, V])."""
        eps, tensors = self.config["rms_norm_eps"], self.tensors
        x = tensors["model.embed_tokens.weight"][ids]
        for index, kind in enumerate(self.config["layer_types"]):
            at = f"model.layers.{index}."
            h = rms(x, 1.0 + tensors[at + "input_layernorm.weight"], eps)
            mixer = self._attention if kind == "full_attention" else self._gated_deltanet
            self.mixers[index] = mixer(index, h, positions)
            x = x + self.mixers[index]
            h = rms(x, 1.0 + tensors[at + "post_attention_layernorm.weight"], eps)
            gate = h @ tensors[at + "mlp.gate_proj.weight"].T
            up = h @ tensors[at + "mlp.up_proj.weight"].T
            x = x + (silu(gate) * up) @ tensors[at + "mlp.down_proj.weight"].T
        final = rms(x, 1.0 + tensors["model.norm.weight"], eps)
        return x, final @ tensors["lm_head.weight"].T

    def _attention(self, index: int, h: np.ndarray, positions: np.ndarray) -> np.ndarray:
        config, eps = self.config, self.config["rms_norm_eps"]
        weight = {
            name: self.tensors[f"model.layers.{index}.self_attn.{name}.weight"]
            for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
        }
        length, width = len(h), config["head_dim"]
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        both = (h @ weight["q_proj"].T).reshape(length, heads, 2 * width)
        q, gate = both[..., :width], both[..., width:]
        k = (h @ weight["k_proj"].T).reshape(length, groups, width)
        v = (h @ weight["v_proj"].T).reshape(length, groups, width)
        q = rotate(rms(q, 1.0 + weight["q_norm"], eps), positions, config["rope_parameters"])
        k = rotate(rms(k, 1.0 + weight["k_norm"], eps), positions, config["rope_parameters"])
        self.keys[index], self.values[index] = k, v
        out = np.zeros((length, heads, width))
        for head in range(heads):
            group = head // (heads // groups)
            scores = q[:, head] @ k[:, group].T / np.sqrt(width)
            scores[np.triu_indices(length, 1)] = -np.inf
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, group]
        return (out * sigmoid(gate)).reshape(length, -1) @ weight["o_proj"].T

    def _gated_deltanet(self, index: int, h: np.ndarray, positions: np.ndarray) -> np.ndarray:
        config = self.config
        part = f"model.layers.{index}.linear_attn."
        tensors = {
            name[len(part) :]: value
            for name, value in self.tensors.items()
            if name.startswith(part)
        }
        key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
        length = len(h)
        u = h @ tensors["in_proj_qkv.weight"].T
        self.raw_columns[index] = u
        kernel = tensors["conv1d.weight"][:, 0]
        taps = kernel.shape[1]
        mixed = np.zeros_like(u)
        for t in range(length):
            for tap in range(taps):
                source = t - (taps - 1) + tap
                if source >= 0:
                    mixed[t] += kernel[:, tap] * u[source]
        mixed = silu(mixed)
        all_keys = key_heads * key_dim
        q = l2(mixed[:, :all_keys].reshape(length, key_heads, key_dim)) / np.sqrt(key_dim)
        k = l2(mixed[:, all_keys : 2 * all_keys].reshape(length, key_heads, key_dim))
        v = mixed[:, 2 * all_keys :].reshape(length, value_heads, value_dim)
        beta = sigmoid(h @ tensors["in_proj_b.weight"].T)
        step = h @ tensors["in_proj_a.weight"].T + tensors["dt_bias"]
        g = -np.exp(tensors["A_log"]) * np.logaddexp(0.0, step)
        out = np.zeros((length, value_heads, value_dim))
        states = []
        for head in range(value_heads):
            source = head // (value_heads // key_heads)
            out[:, head], state = delta_rule(
                q[:, source], k[:, source], v[:, head], g[:, head], beta[:, head]
            )
            states.append(state)
        self.states[index] = np.array(states)
        z = (h @ tensors["in_proj_z.weight"].T).reshape(out.shape)
        out = rms(out, tensors["norm.weight"], config["rms_norm_eps"]) * silu(z)
        return out.reshape(length, -1) @ tensors["out_proj.weight"].T
