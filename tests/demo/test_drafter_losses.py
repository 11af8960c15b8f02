"""Losses of the drafters against float64 loops, and their features against the engine's."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ninfer_jax.artifact import open_artifact
from ninfer_jax.checkpoint.names import named_parameters
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.model.decoder import Decoder
from ninfer_jax.model.dflash2 import DFlash2
from ninfer_jax.model.mtp import MultiTokenPrediction
from ninfer_jax.model.weights import initial_arrays, spec_tree
from tests.engine.drafting import draft_config, drafted, lanes, random_drafter, run
from tests.model import draft_oracle as oracle
from tests.model.building import ADDRESSABLE, SMALL, small_model
from tools.train_demo import drafters, frozen
from tools.train_demo.drafters import BLOCK, CHAIN, DFLASH2, FADE, Blocks

ROWS, COLUMNS = 2, 12
TAPS = (0, 2)
"""Of the small model; its last layer is the last one."""


@functools.cache
def drafter(name: str) -> tuple[tuple, dict, dict[str, np.ndarray]]:
    """Static parts of a loss, noisy f32 arrays, and the same by name in float64."""
    model, rng = small_model(), np.random.RandomState(4)
    config = draft_config(model)
    module = MultiTokenPrediction(model.config) if name == "mtp" else DFlash2(config)
    graph, specs = nnx.split(module)[0], spec_tree(module)
    arrays = jax.tree.map(
        lambda x: jnp.asarray(x + 0.1 * rng.randn(*x.shape), jnp.float32),
        initial_arrays(module, 1),
    )
    named = named_parameters(specs, jax.tree.map(np.asarray, drafters.tied(specs, arrays)))
    parts = (graph, specs) if name == "mtp" else (graph, specs, config)
    return parts, arrays, {name: np.asarray(x, np.float64) for name, x in named.items()}


@functools.cache
def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, a loss mask with holes, and features of both taps."""
    rng = np.random.RandomState(6)
    tokens = rng.randint(0, ADDRESSABLE, (ROWS, COLUMNS)).astype(np.int32)
    mask = (rng.rand(ROWS, COLUMNS) < 0.8).astype(np.float32)
    width = len(TAPS) * SMALL["hidden_size"]
    return tokens, mask, rng.randn(ROWS, COLUMNS, width).astype(np.float32)


@functools.cache
def target() -> tuple[Decoder, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The decoder; embedding and head in float64; final hidden columns and their laws."""
    model = small_model()
    named = named_parameters(model.specs, model.arrays)
    embedding, head, norm = (
        np.asarray(named[f"text/{name}"], np.float64)
        for name in ("token_embedding", "output_head", "final_norm")
    )
    hidden = oracle.rms(batch()[2][..., -SMALL["hidden_size"] :].astype(np.float64), 1.0 + norm)
    head = head[:ADDRESSABLE]
    return model.merge(), embedding, head, hidden, softmax(hidden @ head.T)


def softmax(logits: np.ndarray) -> np.ndarray:
    law = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return law / law.sum(axis=-1, keepdims=True)


def cross_entropy(logits: np.ndarray, law: np.ndarray) -> float:
    return -float(law @ np.log(softmax(logits)))


def test_the_law_of_a_column_is_that_of_the_target():
    decoder, _, _, _, law = target()
    found = jax.nn.softmax(decoder.logits(jnp.asarray(batch()[2][..., -SMALL["hidden_size"] :])))
    np.testing.assert_allclose(found, law, atol=1e-5)


BLOCKS = ((0, 3, BLOCK), (1, 0, 5), (0, 7, 8), (1, 10, 2))
"""(row, position, width): two of them reach past the end of the text."""


def blocks() -> Blocks:
    return Blocks(*(jnp.asarray(column, jnp.int32) for column in zip(*BLOCKS, strict=True)))


def test_the_loss_of_the_block_drafter_is_that_of_loops():
    parts, arrays, named = drafter("dflash2")
    config, (tokens, mask, features) = parts[2], batch()
    decoder, embedding, head, _, law = target()
    selector = "dflash2/candidate_selector/"
    head_loss = edge_loss = total = first = prefix = starts = 0.0
    for row, position, width in BLOCKS:
        ids = np.full(width, config.mask_token)
        ids[0] = tokens[row, position]
        hidden = oracle.block(config, named, embedding[ids], features[row, :position])
        alive = True
        for column in range(1, width):
            place = position + column
            if place >= COLUMNS or not mask[row, place]:
                continue
            before = named[selector + "predecessor_codebook"][tokens[row, place - 1]]
            gate = named[selector + "hidden_projection"] @ hidden[column - 1]
            after = named[selector + "successor_codebook"][:ADDRESSABLE]
            logits = head @ hidden[column - 1]
            edges = logits + after @ (before * gate)
            wanted, weight = law[row, place - 1], np.exp(-(column - 1) / FADE)
            head_loss += weight * cross_entropy(logits, wanted)
            edge_loss += weight * cross_entropy(edges, wanted)
            total += weight
            right = np.argmax(edges) == np.argmax(wanted)
            alive = alive and right
            if mask[row, position + 1]:
                prefix += alive
            if column == 1:
                starts += 1
                first += right
    loss, metrics = drafters.dflash2_loss(arrays, parts, decoder, tokens, mask, features, blocks())
    assert float(metrics["head"]) == pytest.approx(head_loss / total, rel=1e-4)
    assert float(metrics["edge"]) == pytest.approx(edge_loss / total, rel=1e-4)
    assert float(loss) == pytest.approx((edge_loss + 0.5 * head_loss) / total, rel=1e-4)
    assert float(metrics["first"]) == pytest.approx(first / starts)
    assert float(metrics["accepted"]) == pytest.approx(prefix / starts)


def test_the_loss_of_the_mtp_chain_is_that_of_loops():
    parts, arrays, named = drafter("mtp")
    tokens, mask, features = batch()
    decoder, embedding, head, hidden, law = target()
    loss = total = 0.0
    for row in range(ROWS):
        for t in range(COLUMNS):
            # Rows 0 .. t know the target; behind them the chain feeds on itself.
            known = list(hidden[row, : t + 1])
            for step in range(CHAIN):
                judged = t + step + 2
                if judged >= COLUMNS:
                    break
                place = np.broadcast_to(np.arange(len(known)), (3, len(known)))
                ids = tokens[row, 1 : len(known) + 1]
                rows = oracle.mtp(
                    small_model().config,
                    SMALL["rope_parameters"],
                    named,
                    embedding[ids],
                    np.array(known),
                    place,
                )
                known.append(rows[-1])
                weight = mask[row, judged] * mask[row, t + 1] * 0.8**step
                loss += weight * cross_entropy(head @ rows[-1], law[row, judged - 1])
                total += weight
    found, metrics = drafters.mtp_loss(arrays, parts, decoder, tokens, mask, features)
    assert float(found) == pytest.approx(loss / total, rel=1e-4)
    accepted = [float(metrics[f"accepted_{step + 1}"]) for step in range(CHAIN)]
    assert sorted(accepted, reverse=True) == accepted


def test_a_drafter_that_is_right_has_the_least_loss():
    """Soft labels: the cross entropy of a law with itself is its entropy, and no law has less."""
    law = softmax(np.random.RandomState(0).randn(5, 9))
    entropy = -np.sum(law * np.log(law), axis=-1)
    np.testing.assert_allclose(drafters.cross_entropy(jnp.log(law), law), entropy, rtol=1e-5)
    other = np.random.RandomState(1).randn(5, 9)
    assert (np.asarray(drafters.cross_entropy(other, law)) > entropy).all()


@pytest.mark.parametrize("name", ["mtp", "dflash2"])
def test_only_learned_tokens_count(name):
    """A loss over nothing is zero, not a division by it."""
    parts, arrays, _ = drafter(name)
    tokens, mask, features = batch()
    if name == "mtp":
        found, _ = drafters.mtp_loss(arrays, parts, target()[0], tokens, 0 * mask, features)
    else:
        found, _ = drafters.dflash2_loss(
            arrays, parts, target()[0], tokens, 0 * mask, features, blocks()
        )
    assert float(found) == 0


def test_taps_of_training_are_those_of_the_artifact():
    with open_artifact(find_artifact("demo")) as artifact:
        assert artifact.components["dflash2"].config == DFLASH2
        last = artifact.components["text"].config["num_hidden_layers"] - 1
    assert DFLASH2["dflash_config"]["target_layer_ids"] == list(frozen.TAPS)
    assert frozen.TAPS[-1] == last, "the last tap is the hidden state"


@pytest.fixture
def observe(monkeypatch):
    """Features of whole sequences of the small model, as training sees them."""
    monkeypatch.setattr(frozen, "TAPS", TAPS)
    model = small_model()
    return frozen.FrozenModel(model.config, model.graph, model.weights).observe


def decoded(programs, slot: int):
    """A lane behind its prompt and some rounds, and all its tokens that have run."""
    (lane,) = lanes([slot])
    lane.prefill(programs)
    run(programs, [lane], 20)
    return lane, np.concatenate([lane.prompt, lane.tokens])[: lane.frontier]


def test_what_the_block_drafter_keeps_is_made_of_those_features(observe):
    """Rows of its ring, from a prompt and from the rounds behind it."""
    programs = drafted("dflash2", 7)
    lane, tokens = decoded(programs, 2)
    features = observe(tokens[None]).astype(np.float32)
    static, weights = random_drafter("dflash2", 7)
    module = nnx.merge(static.graph, nnx.State(weights.module))
    rows = module.context_rows(jnp.asarray(features), jnp.arange(len(tokens))[None])
    window = static.config.sliding_window
    absorbed = lane.frontier - lane.pending.absorb
    kept = np.arange(absorbed - window, absorbed)
    assert kept[0] < len(lane.prompt) < kept[-1]
    for ring, (keys, values) in zip(programs._state.drafter, rows, strict=True):
        for planes, wanted in ((ring.keys, keys), (ring.values, values)):
            (plane,) = planes.values()
            found = np.asarray(plane)[lane.slot, kept % window]
            # Features are kept in 16 bits.
            np.testing.assert_allclose(found, np.asarray(wanted)[0, kept], atol=1e-2)


def test_what_waits_for_mtp_is_made_of_those_features(observe):
    """The pending columns of the last round, behind the target's final norm."""
    programs = drafted("mtp", 4)
    lane, tokens = decoded(programs, 2)
    hidden = observe(tokens[None])[0, :, -SMALL["hidden_size"] :].astype(np.float32)
    wanted = np.asarray(small_model().merge().norm(jnp.asarray(hidden)))
    count = lane.pending.absorb
    found = np.asarray(programs._state.log.features)[lane.slot, :count]
    np.testing.assert_allclose(found, wanted[lane.frontier - count :], atol=1e-2)
