"""What Orbax's threads log of a fault that its caller hears of anyway."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from absl import logging as absl_logging

from ninfer_jax.checkpoint import orbax
from ninfer_jax.errors import ArtifactError


def log_from(path: str, message: str) -> None:
    """Logs as code in the file `path` does."""
    code = compile("error(message)", path, "exec")
    exec(code, {"error": absl_logging.error, "message": message})


def test_a_fault_is_told_once(tmp_path, caplog):
    """A thread may log after the save has returned; what others log is not touched."""
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(ArtifactError, match="cannot be written"):
        orbax.save_group(blocked / "checkpoint", {"x": np.zeros(4)})
    absl_logging.get_absl_logger().addHandler(caplog.handler)
    try:
        log_from("/site-packages/orbax/checkpoint/futures.py", "late")
        log_from("/site-packages/other/orbax.py", "of another")
    finally:
        absl_logging.get_absl_logger().removeHandler(caplog.handler)
    assert "late" not in caplog.text and "of another" in caplog.text
    assert absl_logging.get_absl_logger().isEnabledFor(logging.ERROR)
