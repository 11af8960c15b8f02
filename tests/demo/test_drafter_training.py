"""Training and export of the drafters: blocks, batches, resuming, and what is written."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("optax", reason="the extra `train` is not installed")

import jax
import jax.numpy as jnp
import numpy as np

from ninfer_jax.artifact import open_artifact
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.checkpoint.from_artifact import load_weights
from ninfer_jax.checkpoint.names import arrays_by_spec, named_parameters
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.model.config import text_config
from ninfer_jax.model.weights import initial_arrays
from tests.model.building import ADDRESSABLE, SMALL, small_model
from tools.train_demo import drafters, export_drafters, train, train_drafter
from tools.train_demo.data import Batch
from tools.train_demo.frozen import FrozenModel


def batch(rows: int, columns: int, seed: int = 0) -> Batch:
    rng = np.random.RandomState(seed)
    tokens = rng.randint(0, ADDRESSABLE, (rows, columns)).astype(np.int32)
    return Batch(tokens, (rng.rand(rows, columns) < 0.7).astype(np.float32))


def test_blocks_begin_on_learned_tokens_with_one_behind_them():
    made = batch(6, 40)
    blocks = train_drafter.choose_blocks(made, 500, np.random.default_rng(0))
    assert (made.loss_mask[blocks.row, blocks.position] == 1).all()
    assert (made.loss_mask[blocks.row, blocks.position + 1] == 1).all()
    assert blocks.width.min() == 2 and blocks.width.max() == drafters.BLOCK
    assert np.mean(blocks.width == 8) == pytest.approx(0.64, abs=0.08)
    assert {array.dtype for array in (blocks.row, blocks.position, blocks.width)} == {
        np.dtype(np.int32)
    }


@pytest.mark.parametrize(("columns", "shape"), [(100, (8, 128)), (128, (8, 128)), (150, (4, 224))])
def test_batches_have_one_of_two_shapes(columns, shape):
    """Cut and padded: nothing padded is learned."""
    made = batch(6, columns)
    cut = train_drafter.even(made, 1024)
    assert cut.tokens.shape == cut.loss_mask.shape == shape
    rows = min(6, shape[0])
    np.testing.assert_array_equal(cut.tokens[:rows, :columns], made.tokens[:rows])
    np.testing.assert_array_equal(cut.loss_mask[:rows, :columns], made.loss_mask[:rows])
    assert cut.loss_mask[rows:].sum() == cut.loss_mask[:, columns:].sum() == 0


def test_kept_batches_come_back_with_their_features(monkeypatch, tmp_path):
    monkeypatch.setattr(
        train_drafter, "batches", lambda *_: (batch(4, 100, seed) for seed in range(10**6))
    )
    seen = []

    class Model:
        def observe(self, tokens):
            seen.append(tokens)
            return tokens[..., None]

    source = train_drafter.Source(Model(), tmp_path, 0, 512)
    items = [next(source) for _ in range(40)]
    for made, features in items:
        np.testing.assert_array_equal(features[..., 0], made.tokens)
    assert len(seen) < len(items)
    assert len({id(made) for made, _ in items}) == len(seen)


class Clock:
    """A minute per reading."""

    def __init__(self):
        self._minutes = itertools.count()

    def monotonic(self) -> float:
        return 60.0 * next(self._minutes)


class OneBatch:
    """The same batch for ever."""

    def __init__(self, model, work, seed, tokens):
        made = batch(2, 12)
        self._item = made, np.asarray(model.observe(made.tokens))

    def __next__(self):
        return self._item


def test_an_interrupted_run_goes_on_where_it_was(monkeypatch, tmp_path, capsys):
    """A step is a minute here, and the first one of a process does not count."""
    model = small_model()
    width = 2 * SMALL["hidden_size"]
    rng = np.random.RandomState(3)
    features = rng.randn(2, 12, width).astype(np.float16)
    monkeypatch.setattr(FrozenModel, "observe", lambda self, tokens: features)
    monkeypatch.setattr(
        train_drafter,
        "load_frozen",
        lambda path: FrozenModel(model.config, model.graph, model.weights),
    )
    monkeypatch.setattr(train_drafter, "Source", OneBatch)
    monkeypatch.setattr(train_drafter, "time", Clock())
    # Compiled once for both runs.
    built = train_drafter.build_step(
        "mtp", train_drafter.load_frozen(tmp_path), train_drafter.build_optimizer()
    )
    losses = []

    def step(params, *rest):
        params, state, metrics = built[0](params, *rest)
        losses.append(loss(params))
        return params, state, metrics

    loss_of, _ = drafters.loss_function("mtp", model.config)
    made = batch(2, 12)
    fixed = {
        "tokens": jnp.asarray(made.tokens),
        "mask": jnp.asarray(made.loss_mask),
        "features": jnp.asarray(features, jnp.float32),
    }
    loss = jax.jit(lambda params: loss_of(params, decoder=model.merge(), **fixed)[0])

    monkeypatch.setattr(train_drafter, "build_step", lambda *_: (step, built[1]))

    def train_for(minutes: int) -> train.Run:
        arguments = ["train_drafter", "mtp", "--work", str(tmp_path), "--minutes", str(minutes)]
        monkeypatch.setattr("sys.argv", arguments)
        train_drafter.main()
        return train.load(tmp_path / "mtp.pickle")

    first = train_for(4)
    assert (first.step, first.seconds) == (5, 240.0)
    assert "resuming" not in capsys.readouterr().out
    second = train_for(8)
    assert (second.step, second.seconds) == (10, 480.0)
    assert "resuming at step 5, 4.0 minutes" in capsys.readouterr().out
    # The rate warms up from nothing: a step later the loss has fallen, and goes on falling.
    start = float(loss(initial_arrays(built[1], 0)))
    assert losses[0] == pytest.approx(start)
    assert losses[9] < losses[5] < losses[4] < start
    # The moments came back too: an optimiser that began anew would count its steps from 0.
    counts = {
        int(leaf)
        for leaf in jax.tree.leaves(second.optimizer)
        if np.ndim(leaf) == 0 and np.issubdtype(np.asarray(leaf).dtype, np.integer)
    }
    assert counts == {10}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The demo with drafters of known arrays in place of its own: path, arrays, text config."""
    work = tmp_path_factory.mktemp("work")
    out, again = work / "out.ninfer", work / "again.ninfer"
    arrays, rng = {}, np.random.RandomState(9)
    with open_artifact(find_artifact("demo")) as artifact:
        config = text_config(artifact.components["text"].config, check_artifact(artifact))
        for index, name in enumerate(("mtp", "dflash2")):
            _, _, module = drafters.build_module(name, config)
            arrays[name] = jax.tree.map(
                lambda x: np.asarray(x + 0.05 * rng.randn(*x.shape), np.float32),
                initial_arrays(module, index),
            )
            train.save(work / f"{name}.pickle", train.Run(arrays[name], (), 100 + index, 1.0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                export_drafters, "token_counts", lambda work, count: np.arange(count)[::-1]
            )
            export_drafters.write(artifact, out, work)
            with open_artifact(out) as written:
                export_drafters.write(written, again, work)
    return out, again, arrays, config


def step_bound(array: np.ndarray, loaded: np.ndarray) -> np.ndarray:
    """Largest error of each entry: half the widest gap of E2M1 (4 to 6) for groups of 16.

    A group's scale is its largest entry over 6, rounded to 3 bits, so codes may end below it:
    then the largest entry lies up to 1/16 beyond the last code.
    """
    if array.ndim != 2 or np.array_equal(array.astype(jnp.bfloat16).astype(np.float32), loaded):
        return np.abs(array) * 2**-8
    groups = np.abs(array).reshape(len(array), -1, 16).max(axis=-1)
    return np.repeat(groups, 16, axis=-1) * (1 / 6) * 1.07 + 1e-6


@pytest.mark.parametrize("name", ["mtp", "dflash2"])
def test_an_exported_drafter_decodes_to_what_was_trained(exported, name):
    path, _, arrays, config = exported
    _, specs, _ = drafters.build_module(name, config)
    place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    with open_artifact(path) as artifact:
        check_artifact(artifact, (name, "proposal"))
        assert artifact.components[name].config == export_drafters.CONFIGS[name]
        assert artifact.components[name].target == "text"
        assert artifact.provenance["drafter_steps"] == {"mtp": 100, "dflash2": 101}
        weights = load_weights(artifact, specs, jnp.dtype(jnp.float32), "dense", place)
        stored = {parameter: artifact.parameter(parameter) for parameter in artifact.bindings}
        decoded = {
            parameter: np.asarray(view.decode(), np.float32)
            for parameter, view in stored.items()
            if parameter.startswith(f"{name}/")
        }
    trained = named_parameters(specs, drafters.tied(specs, arrays[name]))
    assert decoded.keys() == trained.keys()
    for parameter, array in trained.items():
        array = np.asarray(array)
        error = np.abs(decoded[parameter] - array)
        assert (error <= step_bound(array, decoded[parameter])).all(), parameter
    # And the loader gives the engine the same numbers.
    expected = arrays_by_spec(specs, decoded)
    flat = jax.tree.leaves(drafters.as_weights(specs, expected, jnp.dtype(jnp.float32)))
    for one, other in zip(flat, jax.tree.leaves(weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_exporting_again_replaces_the_drafters_and_changes_nothing(exported):
    path, again, _, _ = exported
    assert path.read_bytes() == again.read_bytes()


def test_the_text_keeps_every_word(exported):
    with open_artifact(find_artifact("demo")) as before, open_artifact(exported[0]) as after:
        export_drafters.check_text(before, after)
        for role in before.components["text"].resources:
            assert before.resource("text", role) == after.resource("text", role)


def test_the_proposal_head_has_the_commonest_tokens_and_all_special_ones(exported):
    """Counts here fall with the id."""
    with open_artifact(exported[0]) as artifact:
        ids = np.asarray(artifact.parameter("proposal/token_ids").decode())
        rows = artifact.parameter("proposal/head").decode()
        head = artifact.parameter("text/output_head").decode()
    assert len(ids) == export_drafters.PROPOSAL_ROWS and (np.diff(ids) > 0).all()
    common = set(range(400)) - set(ids.tolist())
    assert not common
    assert 986 in ids and ids.max() > 900, "special tokens, whatever their count"
    np.testing.assert_array_equal(rows, np.asarray(head)[ids])
