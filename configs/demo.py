"""The demo: a model of a few megabytes that comes with this package, on any machine.

    python -m ninfer_jax.serve --config demo.py
    python -m ninfer_jax.generate --config demo.py --prompt "What is 47 + 38?"

Expect the server to listen on http://127.0.0.1:8080 after some seconds, without a download and
without an accelerator. It adds and subtracts, writes small JSON objects, tells very short
stories, reads out numbers in Chinese and calls a function. Temperature is 0 unless a request
asks for another.
"""

from __future__ import annotations

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The configuration; a name equals a flag with dashes turned into underscores."""
    return ml_collections.ConfigDict(
        {
            "model": "demo",
            "host": "127.0.0.1",
            "port": 8080,
            "max_context": 8192,
            "max_concurrency": 4,
            # On a CPU a short chunk stays in its caches, and other requests wait less.
            "prefill_chunk": 256,
            "kv_capacity": 16384,
            "default_max_tokens": 2048,
            "temperature": 0.0,
        }
    )
