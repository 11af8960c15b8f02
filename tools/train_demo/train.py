"""Trains the demo model.

    python -m tools.train_demo.vocabulary --work checkpoints/demo
    python -m tools.train_demo.train --work checkpoints/demo --minutes 80

Muon for the hidden matrices, Adam for embedding, head and small parameters. The schedule
follows elapsed training time, so a run ends when it should on any machine; the last part
trains through the storage formats. Interrupted runs go on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
import pickle
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ninfer_jax.demo.generator import SCORED, generate
from ninfer_jax.model.config import TextConfig, text_config
from ninfer_jax.model.training import build_training_model, training_logits, training_loss
from tools.train_demo.data import Renderer, batches, load_tokenizer, prefetched
from tools.train_demo.model import TEXT

MUON_RATE = 0.02
ADAM_RATE = 3e-3
WEIGHT_DECAY = 0.05
WARM_UP = 0.02
FLOOR = 0.02


@dataclasses.dataclass
class Run:
    """What a checkpoint holds."""

    params: dict
    optimizer: optax.OptState
    step: int
    seconds: float


def rate_factor(progress: float) -> float:
    """Linear warm-up, flat to 40 % of the run, then linear decay to `FLOOR`."""
    if progress < WARM_UP:
        return progress / WARM_UP
    if progress < 0.4:
        return 1.0
    return max(FLOOR, (1.0 - progress) / 0.6)


def build_optimizer() -> optax.GradientTransformation:
    """Updates at full rate; the caller scales them by `rate_factor`."""

    def label(path, leaf) -> str:
        names = jax.tree_util.keystr(path)
        hidden = leaf.ndim == 2 and not any(
            name in names for name in ("embedding", "head", "convolution")
        )
        return "matrix" if hidden else "other"

    def outputs_first(params):
        axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
        return jax.tree.map(lambda leaf: axes, params)

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.partition(
            {
                "matrix": optax.contrib.muon(
                    MUON_RATE,
                    weight_decay=WEIGHT_DECAY,
                    adam_learning_rate=ADAM_RATE,
                    # Weights are [out, in]; optax assumes [in, out].
                    muon_weight_dimension_numbers=outputs_first,
                ),
                "other": optax.adam(ADAM_RATE, b1=0.9, b2=0.98),
            },
            lambda params: jax.tree_util.tree_map_with_path(label, params),
        ),
    )


def build_step(config: TextConfig, optimizer: optax.GradientTransformation):
    """The jitted training step; compiled once per batch shape and phase."""

    @functools.partial(jax.jit, static_argnames="fake_quantize", donate_argnums=(0, 1))
    def step(params, state, tokens, mask, factor, fake_quantize):
        loss = functools.partial(training_loss, config=config, fake_quantize=fake_quantize)
        (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(params, tokens, mask)
        updates, state = optimizer.update(gradient, state, params)
        updates = jax.tree.map(lambda update: factor * update, updates)
        return optax.apply_updates(params, updates), state, metrics

    return step


class HeldOut:
    """Share of held-out answers with every token right under teacher forcing.

    That is exactly the share that greedy decoding would write without a fault.
    """

    def __init__(self, config: TextConfig, work: Path, count: int):
        render = Renderer(load_tokenizer(work))
        self._sets = {}
        for name, task in SCORED.items():
            if name == "story":
                continue
            samples = itertools.islice(generate(task, "held_out", seed=7), count)
            rendered = [render(sample) for sample in samples]
            longest = -(-max(len(ids) for ids, _ in rendered) // 32) * 32
            self._sets[name] = tuple(
                np.stack([np.pad(row[part], (0, longest - len(row[part]))) for row in rendered])
                for part in (0, 1)
            )

        @functools.partial(jax.jit, static_argnames="fake_quantize")
        def exact(params, tokens, mask, fake_quantize):
            logits = training_logits(params, tokens, config, fake_quantize)[:, :-1]
            right = jnp.argmax(logits, axis=-1) == tokens[:, 1:]
            return jnp.mean(jnp.all(right | (mask[:, 1:] == 0), axis=1))

        self._exact = exact

    def __call__(self, params: dict, fake_quantize: bool) -> dict[str, float]:
        """Accuracy per task."""
        return {
            name: float(self._exact(params, tokens, mask, fake_quantize))
            for name, (tokens, mask) in self._sets.items()
        }


def save(path: Path, run: Run) -> None:
    """Writes a checkpoint atomically."""
    host = (*jax.device_get((run.params, run.optimizer)), run.step, run.seconds)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        pickle.dump(host, file)
    os.replace(temporary, path)


def load(path: Path) -> Run:
    """Reads a checkpoint of `save`; only load files you wrote yourself."""
    with path.open("rb") as file:
        return Run(*pickle.load(file))


def main() -> None:
    """Trains until the time is used up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=Path("checkpoints/demo"))
    parser.add_argument("--minutes", type=float, default=80.0)
    parser.add_argument("--tokens-per-batch", type=int, default=5120)
    parser.add_argument("--quantize-from", type=float, default=0.8)
    parser.add_argument("--extra", help="task=weight added to the mixture, e.g. sum_of_three=0.5")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = text_config(TEXT, load_tokenizer(arguments.work).get_vocab_size())
    optimizer = build_optimizer()
    checkpoint = arguments.work / "checkpoint.pickle"
    if checkpoint.exists():
        run = load(checkpoint)
        print(f"resuming at step {run.step}, {run.seconds / 60:.1f} minutes", flush=True)
    else:
        params = build_training_model(config, arguments.seed)
        run = Run(params, optimizer.init(params), 0, 0.0)
    step = build_step(config, optimizer)
    held_out = HeldOut(config, arguments.work, count=128)
    extra = {}
    if arguments.extra:
        name, weight = arguments.extra.split("=")
        extra[name] = float(weight)
    data_seed = arguments.seed * 1000 + run.step
    source = prefetched(batches(arguments.work, data_seed, arguments.tokens_per_batch, extra))
    total = arguments.minutes * 60
    seen, tokens_seen, last_save, last_check = set(), 0, run.seconds, run.seconds
    losses, window = [], time.monotonic()
    while run.seconds < total:
        batch = next(source)
        progress = run.seconds / total
        quantize = progress >= arguments.quantize_from
        started = time.monotonic()
        run.params, run.optimizer, metrics = step(
            run.params,
            run.optimizer,
            batch.tokens,
            batch.loss_mask,
            np.float32(rate_factor(progress)),
            fake_quantize=quantize,
        )
        losses.append((float(metrics["loss"]), float(metrics["accuracy"])))
        run.step += 1
        # The first step of a shape compiles; that time is not training time.
        if (batch.tokens.shape, quantize) in seen:
            run.seconds += time.monotonic() - started
        seen.add((batch.tokens.shape, quantize))
        tokens_seen += batch.tokens.size
        if run.step % 20 == 0:
            loss, accuracy = np.mean(losses[-20:], axis=0)
            speed = tokens_seen / (time.monotonic() - window)
            tokens_seen, window = 0, time.monotonic()
            print(
                f"step {run.step} | {run.seconds / 60:.1f} min | loss {loss:.4f} | "
                f"accuracy {accuracy:.4f} | {speed:.0f} tok/s | "
                f"rate {rate_factor(progress):.3f}{' | quantised' if quantize else ''}",
                flush=True,
            )
        if run.seconds - last_check > 240:
            last_check = run.seconds
            scores = held_out(run.params, quantize)
            print("held out | " + " | ".join(f"{k} {v:.3f}" for k, v in scores.items()), flush=True)
        if run.seconds - last_save > 180:
            last_save = run.seconds
            save(checkpoint, run)
    save(checkpoint, run)
    scores = held_out(run.params, True)
    print("held out | " + " | ".join(f"{k} {v:.3f}" for k, v in scores.items()), flush=True)


if __name__ == "__main__":
    main()
