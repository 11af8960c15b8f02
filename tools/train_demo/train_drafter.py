"""Trains a drafter on the frozen demo model.

    python -m tools.train_demo.train_drafter dflash2 --work checkpoints/demo --minutes 40
    python -m tools.train_demo.train_drafter mtp --work checkpoints/demo --minutes 15

The model's features are computed once per batch and kept; a batch comes back later with other
anchors. The schedule follows elapsed training time; interrupted runs go on.
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ninfer_jax.model.weights import initial_arrays
from tools.train_demo.data import Batch, batches, prefetched
from tools.train_demo.drafters import BLOCK, Blocks, loss_function
from tools.train_demo.export import DESTINATION
from tools.train_demo.frozen import FrozenModel, load_frozen
from tools.train_demo.train import Run, load, rate_factor, save

MUON_RATE = 0.02
ADAM_RATE = 3e-3
LENGTHS = (128, 224)
"""Row lengths."""
KEPT = 400
"""Batches kept with their features, some gigabytes."""
REUSE = 3
"""How often a kept batch is used for each new one."""


def build_optimizer() -> optax.GradientTransformation:
    """Muon for matrices, Adam for codebooks and small parameters."""

    def label(path, leaf) -> str:
        names = jax.tree_util.keystr(path)
        return "matrix" if leaf.ndim == 2 and "essors" not in names else "other"

    def outputs_first(params):
        axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
        return jax.tree.map(lambda leaf: axes, params)

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.partition(
            {
                "matrix": optax.contrib.muon(
                    MUON_RATE,
                    weight_decay=0.02,
                    adam_learning_rate=ADAM_RATE,
                    # Weights are [out, in]; optax assumes [in, out].
                    muon_weight_dimension_numbers=outputs_first,
                ),
                "other": optax.adam(ADAM_RATE, b1=0.9, b2=0.98),
            },
            lambda params: jax.tree_util.tree_map_with_path(label, params),
        ),
    )


def choose_blocks(batch: Batch, count: int, rng: np.random.Generator) -> Blocks:
    """Anchors on learned tokens with a learned token behind them; widths mostly 8."""
    rows, positions = np.nonzero(batch.loss_mask[:, :-1] * batch.loss_mask[:, 1:])
    chosen = rng.integers(0, len(rows), count)
    width = np.where(rng.random(count) < 0.6, 8, rng.integers(2, BLOCK + 1, count))
    return Blocks(*(array.astype(np.int32) for array in (rows[chosen], positions[chosen], width)))


def even(batch: Batch, tokens: int) -> Batch:
    """The batch in one of two shapes, of about `tokens` tokens: compiling takes a minute each."""
    length = next(length for length in LENGTHS if length >= batch.tokens.shape[1])
    rows = min(tokens // length, batch.tokens.shape[0])

    def cut(array: np.ndarray) -> np.ndarray:
        padding = (0, tokens // length - rows), (0, length - array.shape[1])
        return np.pad(array[:rows], padding)

    return Batch(cut(batch.tokens), cut(batch.loss_mask))


class Source:
    """Batches with features: new ones, and kept ones between them."""

    def __init__(self, model: FrozenModel, work: Path, seed: int, tokens: int):
        self._model = model
        made = batches(work, seed, tokens)
        self._new = prefetched(even(batch, tokens) for batch in made)
        self._rng = np.random.default_rng(seed)
        self._kept: list[tuple[Batch, np.ndarray]] = []
        self._uses = 0

    def __next__(self) -> tuple[Batch, np.ndarray]:
        self._uses += 1
        if len(self._kept) > 8 and self._uses % REUSE:
            return self._kept[self._rng.integers(len(self._kept))]
        batch = next(self._new)
        item = batch, self._model.observe(batch.tokens)
        if len(self._kept) == KEPT:
            self._kept.pop(0)
        self._kept.append(item)
        return item


def build_step(name: str, model: FrozenModel, optimizer: optax.GradientTransformation):
    """The jitted step, and the abstract module."""
    loss_of, module = loss_function(name, model.config)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, weights, tokens, mask, features, factor, *blocks):
        decoder = model.merge(weights)

        def loss(params):
            wide = features.astype(jnp.float32)
            return loss_of(
                params,
                decoder=decoder,
                tokens=tokens,
                mask=mask,
                features=wide,
                **({"blocks": blocks[0]} if blocks else {}),
            )

        (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state, params)
        updates = jax.tree.map(lambda update: factor * update, updates)
        return optax.apply_updates(params, updates), state, metrics

    return step, module


def main() -> None:
    """Trains until the time is used up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("drafter", choices=("dflash2", "mtp"))
    parser.add_argument("--work", type=Path, default=Path("checkpoints/demo"))
    parser.add_argument("--artifact", type=Path, default=DESTINATION)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--tokens-per-batch", type=int)
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    name = arguments.drafter
    model = load_frozen(arguments.artifact)
    optimizer = build_optimizer()
    step, module = build_step(name, model, optimizer)
    checkpoint = arguments.work / f"{name}.pickle"
    if checkpoint.exists():
        run = load(checkpoint)
        print(f"resuming at step {run.step}, {run.seconds / 60:.1f} minutes", flush=True)
    else:
        params = initial_arrays(module, arguments.seed)
        run = Run(params, optimizer.init(params), 0, 0.0)
    size = sum(leaf.size for leaf in jax.tree.leaves(run.params))
    print(f"{name}: {size:,} parameters", flush=True)
    tokens = arguments.tokens_per_batch or (4096 if name == "dflash2" else 2048)
    source = Source(model, arguments.work, arguments.seed * 1000 + 500 + run.step, tokens)
    rng = np.random.default_rng(run.step)
    total, seen, last_save, window = arguments.minutes * 60, set(), run.seconds, []
    while run.seconds < total:
        started = time.monotonic()
        batch, features = next(source)
        blocks = (choose_blocks(batch, arguments.blocks, rng),) if name == "dflash2" else ()
        factor = np.float32(rate_factor(run.seconds / total))
        run.params, run.optimizer, metrics = step(
            run.params,
            run.optimizer,
            model.weights,
            batch.tokens,
            batch.loss_mask,
            features,
            factor,
            *blocks,
        )
        window.append({key: float(value) for key, value in metrics.items()})
        run.step += 1
        # The first step of a shape compiles; that time is not training time.
        if batch.tokens.shape in seen:
            run.seconds += time.monotonic() - started
        seen.add(batch.tokens.shape)
        if run.step % 20 == 0:
            means = {key: np.mean([one[key] for one in window]) for key in window[0]}
            shown = " | ".join(f"{key} {value:.3f}" for key, value in means.items())
            window = []
            print(f"step {run.step} | {run.seconds / 60:.1f} min | {shown}", flush=True)
        if run.seconds - last_save > 120:
            last_save = run.seconds
            save(checkpoint, run)
    save(checkpoint, run)


if __name__ == "__main__":
    main()
