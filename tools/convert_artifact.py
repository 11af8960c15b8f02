"""Converts weights between `.ninfer` artifacts, Orbax checkpoints and Hugging Face checkpoints.

    python tools/convert_artifact.py model.ninfer model_orbax            artifact -> Orbax
    python tools/convert_artifact.py model_orbax model.ninfer            Orbax -> artifact v3
    python tools/convert_artifact.py old.ninfer new.ninfer               v1, v2 -> v3, or re-split
    python tools/convert_artifact.py SRC DST --verify                    and prove it; a DST that
                                                                         exists is only proved

The source is recognised by what it is, the target by its name. A killed or interrupted run goes on
when the same command is given again; nothing appears under the final name before it is complete.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from ninfer_jax.artifact.writer import DEFAULT_FILE_LIMIT
from ninfer_jax.errors import ArtifactError, NInferError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python tools/convert_artifact.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("source", type=Path, help="FILE.ninfer, or a checkpoint folder")
    found.add_argument("destination", type=Path, help="FILE.ninfer, or a folder to make")
    found.add_argument(
        "--verify", action="store_true", help="prove that every object comes back byte for byte"
    )
    found.add_argument(
        "--file-limit",
        type=int,
        default=DEFAULT_FILE_LIMIT,
        metavar="BYTES",
        help="largest file of an artifact; larger ones are split into parts (%(default)s)",
    )
    return found


def kind_of(path: Path) -> str:
    """`artifact`, `orbax` or `huggingface`; raises `ArtifactError` for anything else."""
    from ninfer_jax.checkpoint.orbax import is_checkpoint

    if path.is_dir():
        if is_checkpoint(path):
            return "orbax"
        if (path / "config.json").is_file():
            return "huggingface"
        raise ArtifactError(
            f"{path}: neither an Orbax checkpoint (no _CHECKPOINT_METADATA) nor a Hugging Face "
            "checkpoint (no config.json)"
        )
    if not path.exists():
        raise ArtifactError(f"{path}: no such file or folder")
    return "artifact"


def convert(options: argparse.Namespace, watch: Callable[[str], Callable[[int], None]]) -> None:
    """Runs one conversion; `watch` makes a progress bar with a title."""
    from ninfer_jax.artifact.upgrade import upgrade_artifact
    from ninfer_jax.checkpoint.convert import artifact_to_checkpoint, checkpoint_to_artifact

    source, destination = options.source, options.destination
    kind = kind_of(source)
    to_artifact = destination.suffix == ".ninfer"
    progress = watch(f"{source.name} -> {destination.name}")
    if kind == "artifact" and not to_artifact:
        digests = artifact_to_checkpoint(source, destination, progress=progress)
        for name, digest in digests.items():
            print(f"source      {name} sha256 {digest}")
    elif kind == "orbax" and to_artifact:
        checkpoint_to_artifact(
            source, destination, file_limit=options.file_limit, progress=progress
        )
    elif kind == "artifact":
        upgrade_artifact(source, destination, file_limit=options.file_limit, progress=progress)
    else:
        raise ArtifactError(f"{source} is already an Orbax checkpoint; name a target FILE.ninfer")
    print(f"written     {destination}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    options = parser().parse_args(arguments)
    # A conversion needs no accelerator, and must not take one from a server.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    bars: list[tqdm] = []

    def watch(title: str) -> Callable[[int], None]:
        bar = tqdm(desc=title, total=total(options.source), unit="B", unit_scale=True, disable=None)
        bars.append(bar)
        return lambda count: bar.update(count) and None

    try:
        if not (options.verify and os.path.lexists(options.destination)):
            convert(options, watch)
        if options.verify:
            from ninfer_jax.checkpoint.convert import verify_conversion

            count = verify_conversion(
                options.source, options.destination, progress=watch("verifying")
            )
            print(f"verified    {count} objects are the same on both sides, byte for byte")
    except NInferError as error:
        return _fail(bars, error.message, 1)
    except OSError as error:
        return _fail(bars, f"{error.filename or options.destination}: {error.strerror}", 1)
    except KeyboardInterrupt:
        return _fail(bars, "interrupted; the same command goes on where it stopped", 130)
    for bar in bars:
        bar.close()
    return 0


def total(source: Path) -> int | None:
    """Payload bytes of the source, for the progress bar."""
    from ninfer_jax.artifact.writer import payload_end
    from ninfer_jax.checkpoint.open import open_weights

    try:
        with open_weights(source) as opened:
            return payload_end(opened.objects)
    except NInferError:
        return None


def _fail(bars: list[tqdm], message: str, status: int) -> int:
    for bar in bars:
        bar.close()
    print(message, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
