"""Converts weights between `.ninfer` artifacts, Orbax checkpoints and Hugging Face checkpoints.

    python tools/convert_artifact.py model.ninfer model_orbax            artifact -> Orbax
    python tools/convert_artifact.py model_orbax model.ninfer            Orbax -> artifact v3
    python tools/convert_artifact.py old.ninfer new.ninfer               v1, v2 -> v3, or re-split
    python tools/convert_artifact.py hf_folder model.ninfer --profile nvfp4|groupwise-int
        [--base FOLDER] [--dflash2 FOLDER] [--frequencies FILE]          Hugging Face -> artifact
    python tools/convert_artifact.py model.ninfer hf_folder --to huggingface
                                                                        compressed-tensors, lossless
    python tools/convert_artifact.py SRC DST --verify                    and prove it; a DST that
                                                                         exists is only proved

The source is recognised by what it is, the target by its name. A killed or interrupted run goes on
when the same command is given again; nothing appears under the final name before it is complete.
"""

from __future__ import annotations

import argparse
import contextlib
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
    found.add_argument(
        "--to", choices=("huggingface",), help="what kind of folder to make, if not Orbax"
    )
    checkpoint = found.add_argument_group("from a Hugging Face checkpoint")
    checkpoint.add_argument("--profile", choices=("nvfp4", "groupwise-int"))
    checkpoint.add_argument(
        "--base",
        type=Path,
        metavar="FOLDER",
        help="BF16 checkpoint that gives what a quantised one lacks: embedding, MTP, vision, files",
    )
    checkpoint.add_argument(
        "--dflash2", type=Path, metavar="FOLDER", help="checkpoint of the DFlash2 drafter"
    )
    checkpoint.add_argument(
        "--frequencies", type=Path, metavar="FILE", help="token counts; makes a proposal head"
    )
    found.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="from artifact to artifact: replaces the artifact's own template",
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


def check_options(options: argparse.Namespace, kind: str, to_artifact: bool) -> None:
    """Raises `ArtifactError` for options that do not belong to the conversion."""
    if kind == "huggingface" and not to_artifact:
        raise ArtifactError(
            f"{options.destination}: a Hugging Face checkpoint becomes an artifact first; "
            "name a target FILE.ninfer"
        )
    if kind == "huggingface" and options.profile is None:
        raise ArtifactError("a Hugging Face checkpoint needs --profile nvfp4 or groupwise-int")
    if kind == "huggingface" and options.verify:
        raise ArtifactError(
            "--verify compares artifacts and Orbax checkpoints; a quantised artifact is not the "
            "same as the checkpoint it was made from"
        )
    if kind != "huggingface":
        for name in ("profile", "base", "dflash2", "frequencies"):
            if getattr(options, name) is not None:
                raise ArtifactError(
                    f"--{name} is for Hugging Face sources, {options.source} is another kind"
                )
    if options.to == "huggingface" and (to_artifact or options.verify):
        raise ArtifactError("--to huggingface makes a folder, and has no --verify: import it again")
    if kind == "orbax" and not to_artifact and options.to is None:
        raise ArtifactError(
            f"{options.source} is already an Orbax checkpoint; name a target FILE.ninfer"
        )
    if options.chat_template is not None and (kind != "artifact" or not to_artifact):
        raise ArtifactError("--chat-template is for artifact to artifact")


def convert(options: argparse.Namespace, watch: Callable[[str], Callable[[int], None]]) -> None:
    """Runs one conversion; `watch` makes a progress bar with a title."""
    from ninfer_jax.artifact.upgrade import upgrade_artifact
    from ninfer_jax.checkpoint.convert import artifact_to_checkpoint, checkpoint_to_artifact
    from ninfer_jax.checkpoint.open import open_weights

    source, destination = options.source, options.destination
    kind = kind_of(source)
    to_artifact = destination.suffix == ".ninfer"
    check_options(options, kind, to_artifact)
    progress = watch(f"{source.name} -> {destination.name}")
    if kind == "huggingface":
        from ninfer_jax.checkpoint.from_huggingface import convert_checkpoint

        convert_checkpoint(
            source,
            destination,
            profile=options.profile,
            base=options.base,
            dflash2=options.dflash2,
            frequencies=options.frequencies,
            file_limit=options.file_limit,
            progress=lambda name, count: progress(count),
        )
    elif options.to == "huggingface":
        from ninfer_jax.checkpoint.to_compressed_tensors import export_compressed_tensors

        with open_weights(source) as artifact:
            export_compressed_tensors(artifact, destination)
    elif kind == "artifact" and not to_artifact:
        digests = artifact_to_checkpoint(source, destination, progress=progress)
        for name, digest in digests.items():
            print(f"source      {name} sha256 {digest}")
    elif kind == "orbax" and to_artifact:
        checkpoint_to_artifact(
            source, destination, file_limit=options.file_limit, progress=progress
        )
    else:
        template = options.chat_template and options.chat_template.read_bytes()
        upgrade_artifact(
            source,
            destination,
            file_limit=options.file_limit,
            chat_template=template,
            progress=progress,
        )
    print(f"written     {destination}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    options = parser().parse_args(arguments)
    # A conversion needs no accelerator, and must not take one from a server.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.unraisablehook = without_closed_loops(sys.unraisablehook)
    try:
        # The bars are closed before a message is printed.
        with contextlib.ExitStack() as bars:
            run(options, bars)
    except NInferError as error:
        return _fail(error.message, 1)
    except OSError as error:
        return _fail(f"{error.filename or options.destination}: {error.strerror}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on where it stopped", 130)
    return 0


def run(options: argparse.Namespace, bars: contextlib.ExitStack) -> None:
    """Converts, unless there is a result to prove, and proves it where that is asked for."""
    # Only a bar that is seen needs to know how much there is.
    whole = total(options.source) if sys.stderr.isatty() else None

    def watch(title: str) -> Callable[[int], None]:
        bar = tqdm(desc=title, total=whole, unit="B", unit_scale=True, disable=None)
        bars.enter_context(bar)
        return lambda count: bar.update(count) and None

    if not (options.verify and os.path.lexists(options.destination)):
        convert(options, watch)
    if options.verify:
        from ninfer_jax.checkpoint.convert import verify_conversion

        count = verify_conversion(options.source, options.destination, progress=watch("verifying"))
        print(f"verified    {count} objects are the same on both sides, byte for byte")


def without_closed_loops(hook: Callable) -> Callable:
    """A hook for unraisable exceptions that keeps silent about closed event loops.

    When a read or write fails, Orbax closes its loop while others are still under way; each of
    them would print a traceback before the one line that tells what happened.
    """

    def quiet(unraisable) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    return quiet


def total(source: Path) -> int | None:
    """Payload bytes of the source, for the progress bar."""
    from ninfer_jax.artifact.directory import payload_end
    from ninfer_jax.checkpoint.open import open_weights

    try:
        with open_weights(source) as opened:
            return payload_end(opened.objects)
    except NInferError:
        return None


def _fail(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
