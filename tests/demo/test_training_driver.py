"""Schedule, optimiser and checkpoints of the training driver."""

from __future__ import annotations

import pytest

pytest.importorskip("optax", reason="the extra `train` is not installed")

import jax
import jax.numpy as jnp
import numpy as np

from tools.train_demo import train


@pytest.mark.parametrize(
    ("progress", "factor"),
    [(0.0, 0.0), (0.01, 0.5), (0.02, 1.0), (0.39, 1.0), (0.7, 0.5), (1.0, train.FLOOR)],
)
def test_rate_warms_up_stays_and_decays(progress, factor):
    assert train.rate_factor(progress) == pytest.approx(factor)


@pytest.fixture
def params():
    shapes = {
        "embedding": (12, 8),
        "head": (12, 8),
        "layers": {"convolution": (8, 4), "up": (8, 8), "norm": (8,)},
    }
    key = jax.random.key(0)
    return jax.tree.map(
        lambda shape: jax.random.normal(key, shape), shapes, is_leaf=lambda s: isinstance(s, tuple)
    )


def test_only_hidden_matrices_are_orthogonalised(params):
    optimizer = train.build_optimizer()
    gradient = jax.tree.map(lambda p: p**3, params)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    step = updates["layers"]["up"] + train.MUON_RATE * train.WEIGHT_DECAY * params["layers"]["up"]
    strengths = np.linalg.svd(np.asarray(step), compute_uv=False)
    scale = train.MUON_RATE
    assert np.all((strengths > 0.5 * scale) & (strengths < 1.5 * scale))
    for update in (
        updates["embedding"],
        updates["head"],
        updates["layers"]["convolution"],
        updates["layers"]["norm"],
    ):
        # Adam's first step has the size of the rate in every entry with a gradient to speak of.
        assert np.median(np.abs(update)) == pytest.approx(train.ADAM_RATE, rel=0.01)


def test_only_hidden_matrices_decay(params):
    optimizer = train.build_optimizer()
    gradient = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    expected = jax.tree.map(jnp.zeros_like, params)
    expected["layers"]["up"] = -train.MUON_RATE * train.WEIGHT_DECAY * params["layers"]["up"]
    jax.tree.map(lambda u, e: np.testing.assert_allclose(u, e, atol=1e-7), updates, expected)


def test_a_checkpoint_comes_back_as_it_was(params, tmp_path):
    state = train.build_optimizer().init(params)
    run = train.Run(params, state, step=17, seconds=12.5)
    path = tmp_path / "checkpoint.pickle"
    train.save(path, run)
    again = train.load(path)
    assert (again.step, again.seconds) == (17, 12.5)
    jax.tree.map(np.testing.assert_array_equal, again.params, params)
    assert jax.tree.structure(again.optimizer) == jax.tree.structure(state)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_an_interrupted_save_keeps_the_old_checkpoint(params, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pickle"
    train.save(path, train.Run(params, (), step=1, seconds=1.0))

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(train.pickle, "dump", fail)
    with pytest.raises(OSError, match="no space left"):
        train.save(path, train.Run(params, (), step=2, seconds=2.0))
    assert train.load(path).step == 1
