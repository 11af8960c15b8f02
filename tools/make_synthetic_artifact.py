"""Writes an artifact of random words with the inventory of a published model.

    python -m tools.make_synthetic_artifact DST --profile nvfp4 --published-sizes
    python -m tools.make_synthetic_artifact DST --profile groupwise-int --model ninfer-tiny

A file of the 27B takes 17 to 24 GB and is written at the speed of the disk. `--layers N` and
`--components` give smaller ones. The words are a function of the arguments.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from ninfer_jax.artifact.geometry import GEOMETRIES, QWEN_27B
from ninfer_jax.artifact.inventory import QWEN36_RESOURCES, QWEN38_RESOURCES
from ninfer_jax.artifact.native import NATIVE_TEMPLATE_BYTES
from ninfer_jax.artifact.parameters import COMPONENTS, PROFILES
from ninfer_jax.artifact.synthetic import plan_synthetic, write_synthetic
from ninfer_jax.artifact.writer import DEFAULT_FILE_LIMIT
from ninfer_jax.errors import ArtifactError
from tools.synthetic_resources import full_resources, padded, tiny_resources

SHORT_NAMES = {"tiny": "ninfer-tiny"}
PUBLISHED_MODELS = ("qwen3.8-27b", "qwen3.6-27b")


def published_resource_sizes(model_id: str, container: int) -> dict[str, int]:
    """File name -> bytes of the frontend files in the published artifact."""
    if model_id not in PUBLISHED_MODELS or (model_id, container) == ("qwen3.6-27b", 3):
        raise ArtifactError(f"no published resource sizes of {model_id}, container {container}")
    sizes = QWEN36_RESOURCES if model_id == "qwen3.6-27b" else QWEN38_RESOURCES
    if container == 3:
        sizes = sizes | {"chat_template.jinja": NATIVE_TEMPLATE_BYTES}
    return sizes


def main(arguments: list[str] | None = None) -> int:
    """Writes the artifact named on the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("destination", type=Path, help="entry file to write")
    parser.add_argument("--profile", choices=PROFILES, required=True)
    parser.add_argument("--model", choices=[*GEOMETRIES, *SHORT_NAMES], default="qwen3.8-27b")
    parser.add_argument("--layers", type=int, help="text layers, where fewer than the model has")
    parser.add_argument(
        "--components", default=",".join(COMPONENTS), help="comma-separated; text is always there"
    )
    parser.add_argument("--container", type=int, choices=(1, 2, 3), default=3)
    parser.add_argument("--file-limit", type=int, default=DEFAULT_FILE_LIMIT, help="bytes a file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--published-sizes", action="store_true", help="pad resources to the published sizes"
    )
    parser.add_argument("--tokenizer-cache", type=Path, default=Path("checkpoints/qwen_tokenizer"))
    options = parser.parse_args(arguments)
    model_id = SHORT_NAMES.get(options.model, options.model)
    choice = {
        "profile": options.profile,
        "model_id": model_id,
        "layers": options.layers,
        "components": tuple(filter(None, options.components.split(","))),
        "container": options.container,
        "seed": options.seed,
    }
    try:
        is_full = GEOMETRIES[model_id] == QWEN_27B
        resources = full_resources(options.tokenizer_cache) if is_full else tiny_resources()
        if options.published_sizes:
            resources = padded(resources, published_resource_sizes(model_id, options.container))
        plan = plan_synthetic({name: len(data) for name, data in resources.items()}, **choice)
        total = sum(plan.file_sizes(options.file_limit))
        with tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
            files = write_synthetic(
                options.destination,
                resources,
                **choice,
                file_limit=options.file_limit,
                progress=bar.update,
            )
    except ArtifactError as error:
        print(error.message, file=sys.stderr)
        return 1
    for file in files:
        print(f"{file}  {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
