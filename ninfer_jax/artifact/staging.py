"""Unfinished output: a hidden folder beside the destination, which a killed run can take up again.

    with Staging(destination, plan={"source": "...", ...}) as staging:
        done = staging.state.get("objects", 0)
        ... write below staging.folder, staging.record(objects=done + 1) ...

The folder is `.NAME.partial`; its `journal.json` holds the plan and how far the work is. A plan
names everything that decides the bytes (source, layout, options): work under another plan is
thrown away. Ctrl-C and a kill leave the folder, for the same command to go on; a fault removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ninfer_jax.errors import ArtifactError

JOURNAL = "journal.json"
REMOVAL_CHECKS, QUIET_CHECKS, CHECK_SECONDS = 200, 8, 0.05
"""After a fault the folder counts as removed when it was absent this often in a row."""

SPARE_BYTES = 64 << 20
"""Left free on a disk beside what a conversion is known to need."""


class Staging:
    """The unfinished output of one destination, held by one process.

    Attributes:
      folder: where to write.
      state: what `record` stored last, empty for new work.

    Raises `ArtifactError` when the destination exists, cannot be written to, or another process
    is writing it.
    """

    def __init__(self, destination: Path, plan: Mapping[str, Any]):
        if os.path.lexists(destination):
            raise ArtifactError(f"{destination}: exists already and is not overwritten")
        self._destination = destination
        self.folder = destination.parent / f".{destination.name}.partial"
        self.state: dict[str, Any] = {}
        self._plan = dict(plan)
        try:
            self.folder.mkdir(exist_ok=True)
            self._lock = open(self.folder / "lock", "wb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise ArtifactError(f"{destination}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ArtifactError(f"{destination}: another process is writing it") from None
        journal = self._read()
        if journal.get("plan") == self._plan:
            self.state = journal["state"]
        else:
            self.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # KeyboardInterrupt and SystemExit are no faults of the work done so far.
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif issubclass(kind, Exception):
            self._remove()
        self._lock.close()

    def record(self, **state: Any) -> None:
        """Replaces the recorded state; what it speaks of is already written."""
        self.state = state
        text = json.dumps({"plan": self._plan, "state": state})
        temporary = self.folder / f"{JOURNAL}.new"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.folder / JOURNAL)

    def clear(self) -> None:
        """Throws away what another plan, or a run without a journal, left."""
        for path in self.folder.iterdir():
            if path.name == "lock":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.state = {}

    def publish(self, folder: Path) -> None:
        """Gives a finished folder below `self.folder` the destination's name, once on the disk."""
        sync_tree(folder)
        if os.path.lexists(self._destination):
            raise ArtifactError(f"{self._destination}: exists already and is not overwritten")
        os.rename(folder, self._destination)
        sync_path(self._destination.parent)

    def _remove(self) -> None:
        """Removes the folder, which threads of a failed write may make again for a moment."""
        quiet = 0
        for _ in range(REMOVAL_CHECKS):
            quiet = 0 if self.folder.exists() else quiet + 1
            if quiet == QUIET_CHECKS:
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            time.sleep(CHECK_SECONDS)

    def _read(self) -> dict[str, Any]:
        try:
            journal = json.loads((self.folder / JOURNAL).read_bytes())
        except (OSError, ValueError):
            return {}
        complete = isinstance(journal, dict) and isinstance(journal.get("state"), dict)
        return journal if complete else {}


def require_space(folder: Path, needed: int) -> None:
    """Raises `ArtifactError` unless the disk of `folder` has `needed` bytes and a little free."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ArtifactError(f"{folder}: {error.strerror}") from None
    if free < needed + SPARE_BYTES:
        raise ArtifactError(
            f"{folder}: {free:,} bytes are free, {needed + SPARE_BYTES:,} are needed; "
            "free some space or choose another disk"
        )


def file_stamp(path: Path) -> list[int]:
    """What changes when a file is replaced or written to, without reading it: size and time."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def sync_tree(folder: Path) -> None:
    """Forces every file and folder below `folder` to the disk."""
    for root, _, names in os.walk(folder):
        for path in (*(os.path.join(root, name) for name in names), root):
            sync_path(path)


def sync_path(path: str | Path) -> None:
    """Forces one file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
