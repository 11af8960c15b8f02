"""Writes the trained demo model as the artifact inside the package.

python -m tools.train_demo.export --work checkpoints/demo
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.resources
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ninfer_jax.checkpoint.to_artifact import write_decoder
from ninfer_jax.model.config import text_config
from ninfer_jax.model.decoder import build_decoder
from ninfer_jax.quantization.fake import storage_format
from tools.train_demo.data import load_tokenizer
from tools.train_demo.model import TEXT
from tools.train_demo.train import load

DESTINATION = Path("ninfer_jax/demo/demo.ninfer")


def main() -> None:
    """Encodes the checkpoint; replaces an older artifact only after the new one is whole."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=Path("checkpoints/demo"))
    parser.add_argument("--out", type=Path, default=DESTINATION)
    arguments = parser.parse_args()
    run = load(arguments.work / "checkpoint.pickle")
    config = text_config(TEXT, load_tokenizer(arguments.work).get_vocab_size())
    _, specs = build_decoder(config, jnp.float32)
    arrays = jax.tree.map(np.asarray, run.params)
    resources = {
        name: (arguments.work / name).read_bytes()
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    }
    template = importlib.resources.files("ninfer_jax.demo").joinpath("chat_template.jinja")
    resources["chat_template.jinja"] = template.read_bytes()
    digest = hashlib.sha256(b"".join(array.tobytes() for array in jax.tree.leaves(arrays)))
    temporary = arguments.out.with_suffix(".new.ninfer")
    temporary.unlink(missing_ok=True)
    write_decoder(
        temporary,
        specs,
        arrays,
        config=TEXT,
        resources=resources,
        storage_format=storage_format,
        name="ninfer-demo",
        provenance={"converter": "tools/train_demo/export.py", "steps": run.step},
        # The same weights give the same file: the identity is a digest, not a random number.
        artifact_id=digest.digest()[:16],
    )
    temporary.replace(arguments.out)
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
