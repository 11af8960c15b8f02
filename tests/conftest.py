"""Settings shared by all tests: one compilation cache, seeds that are printed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Compiled programs are shared between test processes and runs; set before jax is imported.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "ninfer_jax_test_programs")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
