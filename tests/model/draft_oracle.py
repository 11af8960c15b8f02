"""The drafters in NumPy float64, written from `docs/model.md` sections 4 and 5: naive loops."""

from __future__ import annotations

import numpy as np

from tests.model.oracle import rotate, sigmoid, silu


def fill(shape, a: float) -> np.ndarray:
    """`sin(a (1 + flat index))`."""
    return np.sin(a * (1 + np.arange(np.prod(shape)))).reshape(shape)


def rms(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def convolve(x, normed, base, projection, group: int, side: int) -> np.ndarray:
    """One side of a dynamic convolution; x, normed [T, D], base [2, 2, D]."""
    columns, width = x.shape
    groups = width // group
    out = np.zeros_like(x)
    for i in range(columns):
        delta = projection @ normed[i]
        for channel in range(width):
            for tap in range(2):
                if i < tap:
                    continue
                row = (side * 2 + tap) * groups + channel // group
                out[i, channel] += (base[side, tap, channel] + delta[row]) * x[i - tap, channel]
    return out


def rope(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """All dims of one head vector, pairs (i, i + E/2)."""
    half = len(x) // 2
    angle = position * theta ** (-2.0 * np.arange(half) / len(x))
    first, second = x[:half], x[half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin])


def context_rows(config, weights, layer: int, features: np.ndarray):
    """Keys and values [T, G, E] of target columns 0 .. T - 1."""
    at = f"dflash2/layers/{layer}/"
    context = rms(
        features @ weights["dflash2/feature_projection"].T, weights["dflash2/context_norm"]
    )
    shape = (len(features), config.num_key_value_heads, config.head_dim)
    keys = (context @ weights[at + "attention/context_key"].T).reshape(shape)
    values = (context @ weights[at + "attention/context_value"].T).reshape(shape)
    norm = weights[at + "attention/key_norm"]
    rotated = [
        [rope(rms(head, norm), position, config.rope_theta) for head in column]
        for position, column in enumerate(keys)
    ]
    return np.array(rotated).reshape(shape), values


def block(config, weights, embedded: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Hidden columns of a block behind `len(features)` committed columns, [W - 1, D]."""
    frontier, x = len(features), embedded.astype(np.float64)
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    for layer in range(config.num_layers):
        at = f"dflash2/layers/{layer}/"
        conv = [
            (weights[f"{at}{name}/base_kernel"], weights[f"{at}{name}/kernel_projection"])
            for name in ("attention_conv", "mlp_conv")
        ]
        normed = rms(x, weights[at + "input_norm"])
        mixed = convolve(normed, normed, *conv[0], config.group_size, 0)
        query, key, value = (
            (mixed @ weights[f"{at}attention/{name}"].T).reshape(len(x), -1, width)
            for name in ("query", "key", "value")
        )
        old_keys, old_values = context_rows(config, weights, layer, features)
        out = np.zeros((len(x), heads, width))
        for i in range(len(x)):
            position = frontier + i
            for head in range(heads):
                group = head // (heads // groups)
                q = rope(
                    rms(query[i, head], weights[at + "attention/query_norm"]),
                    position,
                    config.rope_theta,
                )
                scores, seen = [], []
                for p in range(frontier):
                    if position - p < config.sliding_window:
                        scores.append(q @ old_keys[p, group])
                        seen.append(old_values[p, group])
                for j in range(len(x)):
                    k = rope(
                        rms(key[j, group], weights[at + "attention/key_norm"]),
                        frontier + j,
                        config.rope_theta,
                    )
                    scores.append(q @ k)
                    seen.append(value[j, group])
                scores = np.array(scores) / np.sqrt(width)
                law = np.exp(scores - scores.max())
                out[i, head] = (law / law.sum()) @ np.array(seen)
        branch = out.reshape(len(x), -1) @ weights[at + "attention/output"].T
        x = x + convolve(branch, normed, *conv[0], config.group_size, 1)
        normed = rms(x, weights[at + "post_attention_norm"])
        mixed = convolve(normed, normed, *conv[1], config.group_size, 0)
        product = silu(mixed @ weights[at + "mlp/gate"].T) * (mixed @ weights[at + "mlp/up"].T)
        branch = product @ weights[at + "mlp/down"].T
        x = x + convolve(branch, normed, *conv[1], config.group_size, 1)
    return rms(x, weights["dflash2/final_norm"])[1:]


def walk(logits, gate, predecessors, successors, anchor, count, temperature, uniforms, ids=None):
    """The candidate walk: ids [K, C], edges [K, C], q [K, C], tokens [K].

    `ids` names the token of each column of `logits`; None where columns are ids.
    """
    named = np.arange(np.shape(logits)[-1]) if ids is None else np.asarray(ids)
    previous, rows = anchor, []
    for i, row in enumerate(np.asarray(logits, np.float64)):
        column = dict(zip(named.tolist(), row, strict=True))
        ids = sorted(column, key=lambda token: (-column[token], token))[:count]
        edge = np.array(
            [
                column[token] + np.sum(predecessors[previous] * gate[i] * successors[token])
                for token in ids
            ]
        )
        if temperature <= 0:
            pick = int(np.argmax(edge))
            law = np.eye(count)[pick]
        else:
            law = np.exp((edge - edge.max()) / temperature)
            law /= law.sum()
            below = np.nonzero(uniforms[i] < np.cumsum(law))[0]
            pick = int(below[0]) if len(below) else count - 1
        previous = ids[pick]
        rows.append((ids, edge, law, previous))
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def mtp(config, rope, weights, embedded, hidden, positions) -> np.ndarray:
    """Normed columns [T, D] of rows 0 .. T - 1, each attending to all rows up to itself.

    Row t has the embedding of token t + 1, the hidden state of t, and positions[:, t] of t.
    """
    at, eps = "mtp/layers/0/", config.rms_norm_eps

    def offset(x, name):
        return rms(x, 1.0 + weights[name], eps)

    pair = [offset(embedded, "mtp/embedding_norm"), offset(hidden, "mtp/hidden_norm")]
    x = np.concatenate(pair, axis=-1) @ weights["mtp/input_projection"].T
    h, width = offset(x, at + "input_norm"), config.head_dim
    query, key, value, gate = (
        (h @ weights[f"{at}attention/{name}"].T).reshape(len(x), -1, width)
        for name in ("query", "key", "value", "gate")
    )
    query = rotate(offset(query, at + "attention/query_norm"), positions, rope)
    key = rotate(offset(key, at + "attention/key_norm"), positions, rope)
    mixed = np.zeros_like(query)
    for t in range(len(x)):
        for head in range(config.num_attention_heads):
            group = head // (config.num_attention_heads // config.num_key_value_heads)
            scores = key[: t + 1, group] @ query[t, head] / np.sqrt(width)
            law = np.exp(scores - scores.max())
            mixed[t, head] = (law / law.sum()) @ value[: t + 1, group]
    mixed = (mixed * sigmoid(gate)).reshape(len(x), -1)
    x = x + mixed @ weights[at + "attention/output"].T
    h = offset(x, at + "post_attention_norm")
    product = silu(h @ weights[at + "mlp/gate"].T) * (h @ weights[at + "mlp/up"].T)
    return offset(x + product @ weights[at + "mlp/down"].T, "mtp/final_norm")


def mtp_chain(config, rope, weights, embeddings, head, tokens, hidden, length) -> tuple:
    """Greedy drafts behind rows 0 .. n - 1: tokens [K], their logits [K, V], columns [K, D].

    `tokens` [n] are those at 1 .. n, `hidden` [n, D] the target's at 0 .. n - 1.
    """
    tokens, hidden, drafts, logits = list(tokens), list(hidden), [], []
    for _ in range(length):
        place = np.broadcast_to(np.arange(len(tokens)), (3, len(tokens)))
        d = mtp(config, rope, weights, embeddings[tokens], np.array(hidden), place)[-1]
        logits.append(head @ d)
        drafts.append(int(np.argmax(logits[-1])))
        tokens.append(drafts[-1])
        hidden.append(d)
    return np.array(drafts), np.array(logits), np.array(hidden[-length:])
