"""Qwen3.8-27B on one accelerator with 32 GB, for long reasoning.

    python -m ninfer_jax.serve --config reasoning.py

It needs the file qwen3_8_27b_nvfp4.ninfer in the current folder, or its path as first argument:

    python -m ninfer_jax.serve /models/qwen3_8_27b_nvfp4.ninfer --config reasoning.py

Official artifacts are in the Hugging Face repositories neroued/... . Expect a server on port
12435 of every network interface, without a key (add --api-key to set one), with three requests
at a time, up to 262,144 tokens of context, 5,219 KV pages, and eight drafted tokens a round. A
request that names no output limit may produce 65,536 tokens.
"""

from __future__ import annotations

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The configuration; a name equals a flag with dashes turned into underscores."""
    return ml_collections.ConfigDict(
        {
            "model": "qwen3_8_27b_nvfp4.ninfer",
            "host": "0.0.0.0",
            "port": 12435,
            "device": 0,
            "max_context": 262144,
            "kv_dtype": "nvfp4",
            "kv_capacity": 334000,
            "max_concurrency": 3,
            "prefill_chunk": 1024,
            "pending_timeout_ms": 600000,
            "spec": "dflash2",
            "draft_tokens": 8,
            "lm_head_draft": True,
            "vision": True,
            "media_cache_mib": 256,
            "media_live_mib": 512,
            "default_max_tokens": 65536,
            "preserve_thinking": True,
            "request_log_jsonl": "requests.jsonl",
        }
    )
