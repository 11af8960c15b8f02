"""Writing one file of container version 1 or 2 from its directory and a stream of words."""

from __future__ import annotations

import uuid
from pathlib import Path

from ninfer_jax.artifact.directory import payload_end
from ninfer_jax.artifact.framing import entry_header, payload_start
from ninfer_jax.artifact.inventory import legacy_text
from ninfer_jax.artifact.legacy import LegacyDirectory
from ninfer_jax.artifact.payload_writer import PayloadWriter
from ninfer_jax.artifact.staging import Staging
from ninfer_jax.artifact.writer import Produce, Progress


def write_legacy(
    path: str | Path,
    directory: LegacyDirectory,
    chunks: Produce,
    progress: Progress = lambda count: None,
) -> Path:
    """Write a file of the version that `directory` has, and return its path.

    `chunks(object)` gives the bytes of an object as consecutive buffers; gaps become zeros.
    `progress` is told the payload bytes written. The file appears under its name when complete,
    and never replaces one. Raises `ArtifactError` when the name is taken or an object comes out in
    another size than the directory says.
    """
    path = Path(path)
    text = legacy_text(directory)
    head = entry_header(directory.version, len(text)) + text
    start = payload_start(directory.version, len(text))
    span = head, start, payload_end(directory.objects)
    # Without a name for the origin of its bytes it is not taken up again.
    with (
        Staging(path, {"source": uuid.uuid4().hex}) as staging,
        PayloadWriter(path.parent, staging.folder, [path.name], [span]) as writer,
    ):
        for stored in directory.objects.values():
            before = writer.position
            writer.write(stored, chunks(stored))
            progress(writer.position - before)
        return writer.publish()[0]
