"""The one place that knows Orbax: arrays by path into a checkpoint, and out of it.

Orbax's v1 API is still under `experimental`. Arrays are written uncompressed, in groups, so that a
writer holds one group at a time; they are read with a limit on what is in flight, straight to a
device where one is given.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from logging import LogRecord
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from ninfer_jax.errors import ArtifactError

FILE_BYTES = 64 << 20
"""Size of the files of a checkpoint, about, and of the chunks (rows) into which large arrays are
cut: several are written or read at once, each by one thread."""

READ_BYTES = 256 << 20
"""Bytes that a load may have in flight; one array that is larger goes alone."""

FILE_LIST = "ninfer_files.json"
"""Name and size of every file of a checkpoint."""

Arrays = Mapping[str, np.ndarray]
"""Arrays by path; a path is a string and never taken apart."""


def _not_of_orbax(record: LogRecord) -> bool:
    """Lets log records pass but Orbax's: its threads log tracebacks of faults that reach us as
    exceptions anyway."""
    return "orbax" not in Path(record.pathname).parts


@contextmanager
def _context(largest: int = 0):
    """Orbax with our options; `largest` is the size of the largest array to be read.

    Orbax refuses an array unless the limit is above its size.
    """
    # Imported here: start-up without a checkpoint does not pay for it.
    import orbax.checkpoint.experimental.v1 as ocp

    saving = ocp.options.ArrayOptions.Saving(
        use_compression=False,
        ocdbt_target_data_file_size=FILE_BYTES,
        storage_options=ocp.options.ArrayOptions.Saving.StorageOptions(chunk_byte_size=FILE_BYTES),
    )
    # For good: a thread of a save that failed may log after the save has returned.
    logging.get_absl_logger().addFilter(_not_of_orbax)
    with ocp.Context(
        array_options=ocp.options.ArrayOptions(saving=saving),
        memory_options=ocp.options.MemoryOptions(
            read_concurrent_bytes=max(READ_BYTES, largest + 1)
        ),
    ):
        yield ocp


def save_group(path: Path, arrays: Arrays, metadata: Mapping[str, Any] | None = None) -> None:
    """Adds arrays to the unfinished checkpoint `path`; metadata (JSON) is merged by key.

    Raises `ArtifactError` when it cannot be written, as on a full disk.
    """
    # Orbax copies NumPy arrays before it writes them; jax arrays on the host that share their
    # memory it writes as they are.
    host = jax.devices("cpu")[0]
    arrays = {name: jax.device_put(x, host, may_alias=True) for name, x in arrays.items()}
    try:
        with _context() as ocp:
            facts = dict(metadata) if metadata else None
            ocp.partial.save(path, arrays, custom_metadata=facts)
    except Exception as error:  # Orbax raises many kinds
        raise ArtifactError(f"{path}: cannot be written: {_first_line(error)}") from error


def finish(path: Path) -> None:
    """Makes the groups saved so far the checkpoint `path`, with a list of its files."""
    with _context() as ocp:
        ocp.partial.finalize(path)
    sizes = {str(file.relative_to(path)): file.stat().st_size for file in _files(path)}
    (path / FILE_LIST).write_text(json.dumps(sizes, indent=0) + "\n", encoding="utf-8")


def is_finished(path: Path) -> bool:
    """Whether `finish` was completed for the checkpoint `path`."""
    return (path / FILE_LIST).is_file()


def check_files(path: Path) -> None:
    """Raises `ArtifactError` naming a file that is missing or has another size than it had.

    Reading a checkpoint with such a file would also fail, but in many threads and late.
    """
    try:
        sizes = json.loads((path / FILE_LIST).read_bytes())
        expected = {str(name): int(size) for name, size in sizes.items()}
    except FileNotFoundError:
        # Rewritten by Orbax itself: then Orbax answers for it.
        return
    except (OSError, ValueError, TypeError, AttributeError):
        raise ArtifactError(f"{path.name}: {FILE_LIST} is not a list of files") from None
    for name, size in expected.items():
        file = path / name
        if not file.is_file():
            raise ArtifactError(f"{path.name}: the file {name} is missing; convert again")
        if file.stat().st_size != size:
            raise ArtifactError(
                f"{path.name}: the file {name} has {file.stat().st_size} bytes, expected {size}; "
                "convert again"
            )


def total_bytes(path: Path) -> int:
    """Bytes of all files of a checkpoint."""
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != FILE_LIST]


def saved_groups(path: Path) -> int:
    """Groups that are completely saved in the unfinished checkpoint `path`.

    What a killed `save_group` left there is removed.
    """
    folder = path.parent / f"{path.name}.partial_save"
    groups = list(folder.iterdir()) if folder.is_dir() else []
    # The first group makes the folder under another name.
    groups += path.parent.glob(f"{path.name}.partial_save.*")
    count = 0
    for group in groups:
        if (group / "commit_success.txt").is_file():
            count += 1
        else:
            shutil.rmtree(group)
    return count


def is_checkpoint(path: Path) -> bool:
    """Whether the folder is an Orbax checkpoint of any content."""
    return (path / "_CHECKPOINT_METADATA").is_file()


def read_metadata(path: Path) -> tuple[dict[str, jax.ShapeDtypeStruct], dict[str, Any]]:
    """Shape and type of every array, and the metadata that `save_group` was given.

    Raises `ArtifactError` when the folder cannot be read as a checkpoint.
    """
    try:
        with _context() as ocp:
            found = ocp.metadata(path)
        leaves = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for name, leaf in found.metadata.items()
        }
        return leaves, dict(found.custom_metadata or {})
    except Exception as error:  # Orbax raises many kinds
        raise ArtifactError(
            f"{path.name}: cannot be read as an Orbax checkpoint: {_first_line(error)}"
        ) from error


def load(
    path: Path,
    leaves: Mapping[str, jax.ShapeDtypeStruct],
    wanted: Iterable[str],
    sharding: jax.sharding.Sharding | None = None,
) -> dict[str, Any]:
    """Reads some arrays: NumPy arrays, or with a sharding jax arrays placed by it.

    Args:
      path: the checkpoint.
      leaves: all its arrays, from `read_metadata`.
      wanted: paths of the arrays to read.
      sharding: where to; None for host memory.

    Raises:
      ArtifactError: a file of the checkpoint is missing or damaged.
    """
    wanted = list(dict.fromkeys(wanted))
    sizes = [math.prod(leaves[name].shape) * leaves[name].dtype.itemsize for name in wanted]
    try:
        with _context(max(sizes, default=0)) as ocp:
            tree: dict[str, Any] = dict.fromkeys(leaves, ocp.PLACEHOLDER)
            for name in wanted:
                leaf = leaves[name]
                tree[name] = (
                    np.empty(leaf.shape, leaf.dtype)
                    if sharding is None
                    else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
                )
            found = ocp.load(path, tree)
    except Exception as error:
        raise ArtifactError(f"{path.name}: cannot be read: {_first_line(error)}") from error
    return {name: found[name] for name in wanted}


def _first_line(error: Exception) -> str:
    """The first line of an error, its middle left out where it is long: causes stand last."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else f"{text[:100]} ... {text[-200:]}"
