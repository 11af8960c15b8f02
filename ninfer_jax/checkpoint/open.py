"""Opens what weights may come from: an artifact, or a checkpoint converted from one."""

from __future__ import annotations

from pathlib import Path

import jax

from ninfer_jax.artifact import Artifact, open_artifact


def open_weights(path: Path, sharding: jax.sharding.Sharding | None = None) -> Artifact:
    """The file or folder as an artifact.

    Args:
      path: a `.ninfer` file of any version, or an Orbax checkpoint (a folder).
      sharding: where a checkpoint's matrices are to be read to; None for host memory.

    Raises:
      ArtifactError: it is neither, or damaged.
    """
    if path.is_dir():
        # Imported here: an artifact needs nothing of it.
        from ninfer_jax.checkpoint.checkpoint_source import open_checkpoint

        return open_checkpoint(path, sharding)
    return open_artifact(path)
