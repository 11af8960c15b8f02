"""The configuration of a server: the one table of options.

Each field is an option (see `options`): `max_context` is the key in a config file and
`--max-context` the flag. A default of None means "not given". How files and flags are merged
is in `resolve`, which combinations are refused in `checks`.
"""

from __future__ import annotations

import dataclasses

from ninfer_jax.config.capacity import pages_for, pool_pages
from ninfer_jax.config.options import option
from ninfer_jax.config.values import (
    Choice,
    Integer,
    IntegerOr,
    Mebibytes,
    Real,
    Switch,
    Text,
    file_path,
)

NETWORK = "Identity and network"
CAPACITY = "Context, memory, concurrency"
CACHE = "Context cache"
SPECULATION = "Speculation"
GENERATION = "Generation defaults"
MEDIA = "Media"
LOGGING = "Logging and stores"
OLDER = "Older names"

LARGEST_SEED = 2**64 - 1
LARGEST_BUDGET = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """Everything that is fixed before a server listens. Field names are config keys."""

    # Identity and network.
    model: str | None = option(
        None, file_path(), "the .ninfer artifact, or 'demo'", group=NETWORK, positional=True
    )
    host: str = option("127.0.0.1", Text("ADDRESS"), "listen address", group=NETWORK)
    port: int = option(8080, Integer(1, 65535), "listen port", group=NETWORK)
    api_key: str | None = option(
        None, Text("KEY"), "required on every route but /health", group=NETWORK, secret=True
    )
    model_id: str | None = option(
        None, Text("ID"), "public model name; default: the artifact's own", group=NETWORK
    )
    cors: bool = option(False, Switch(), "send permissive browser headers", group=NETWORK)
    max_request_mib: int = option(384, Integer(1), "largest request body", group=NETWORK)

    # Context, memory, concurrency.
    device: int = option(0, Integer(0), "accelerator index", group=CAPACITY)
    max_context: int = option(
        8192, Integer(1), "most tokens of prompt + output of one sequence", group=CAPACITY
    )
    kv_capacity: int | str | None = option(
        None,
        IntegerOr(Integer(1), "auto"),
        "tokens in the KV pool, rounded up to 64; default: max-context",
        group=CAPACITY,
    )
    kv_dtype: str = option(
        "bf16",
        Choice(("bf16", "int8", "fp8", "nvfp4", "k8v4")),
        "storage of the KV cache",
        group=CAPACITY,
    )
    max_concurrency: int = option(1, Integer(1, 8), "sequences that run at once", group=CAPACITY)
    max_pending_requests: int = option(
        16, Integer(1), "requests that may wait behind the running ones", group=CAPACITY
    )
    pending_timeout_ms: int = option(
        30000, Integer(1), "deadline for preparing and waiting", group=CAPACITY
    )
    prefill_chunk: int = option(
        1024, Integer(128, multiple_of=128), "tokens of one prefill unit", group=CAPACITY
    )
    no_cuda_graph: bool = option(False, Switch(), "accepted, has no effect", group=CAPACITY)

    # Context cache.
    no_prefix_reuse: bool = option(False, Switch(), "every request starts afresh", group=CACHE)
    device_state_slots: int | None = option(
        None, Integer(0), "extra state images on the device; default: C", group=CACHE
    )
    host_context_mib: float | None = option(
        None, Mebibytes(), "host memory for parked KV and state; 0: none", group=CACHE
    )
    context_cost_presets: str | None = option(
        None, file_path(), "cost coefficients for cache decisions", group=CACHE
    )

    # Speculation.
    spec: str | None = option(
        None, Choice(("mtp", "dflash", "dflash2")), "the drafter", group=SPECULATION
    )
    draft_tokens: int | None = option(
        None, Integer(1, 15), "drafted tokens K: mtp 1..5, dflash 1..15", group=SPECULATION
    )
    lm_head_draft: bool = option(
        False, Switch(), "use the reduced output head for proposals", group=SPECULATION
    )

    # Generation defaults.
    default_max_tokens: int = option(
        8192, Integer(1), "output limit if a request names none", group=GENERATION
    )
    default_thinking_budget: int | None = option(
        None, Integer(1, LARGEST_BUDGET), "most thinking tokens of a request", group=GENERATION
    )
    no_thinking: bool = option(
        False, Switch(), "thinking is off unless a request asks for it", group=GENERATION
    )
    preserve_thinking: bool = option(
        False, Switch(), "keep the reasoning of closed turns in prompts", group=GENERATION
    )
    chat_template: str | None = option(
        None, file_path(), "replaces the artifact's chat template", group=GENERATION
    )
    temperature: float | None = option(None, Real(0, 2), "default temperature", group=GENERATION)
    top_p: float | None = option(None, Real(0, 1), "default top-p", group=GENERATION)
    top_k: int | None = option(None, Integer(0, 20), "default top-k; 0: 20", group=GENERATION)
    min_p: float | None = option(None, Real(0, 1), "default min-p", group=GENERATION)
    presence_penalty: float | None = option(
        None, Real(-2, 2), "default presence penalty", group=GENERATION
    )
    frequency_penalty: float | None = option(
        None, Real(-2, 2), "default frequency penalty", group=GENERATION
    )
    seed: int | None = option(
        None, Integer(0, LARGEST_SEED), "seed of requests that give none", group=GENERATION
    )
    greedy: bool = option(False, Switch(), "temperature 0 for every request", group=GENERATION)

    # Media.
    vision: bool = option(False, Switch(), "load the vision tower, accept media", group=MEDIA)
    media_cache_mib: int = option(1024, Integer(0), "kept prepared patches", group=MEDIA)
    media_live_mib: int = option(2048, Integer(1), "all prepared patches", group=MEDIA)
    media_preprocess_threads: int = option(
        0, Integer(0, 64), "decoding threads; 0: host cores, at most 16", group=MEDIA
    )

    # Logging and stores.
    log_level: str = option(
        "info",
        Choice(("trace", "debug", "info", "warning", "error", "critical", "off")),
        "what goes to stderr",
        group=LOGGING,
    )
    log_stats_interval_ms: int = option(
        5000, Integer(0), "period of the throughput line; 0: none", group=LOGGING
    )
    request_log_jsonl: str | None = option(
        None, file_path(), "append-only machine log", group=LOGGING
    )
    response_store_max_records: int = option(
        1024, Integer(1), "stored Responses objects", group=LOGGING
    )
    response_store_max_mib: int = option(256, Integer(1), "their total size", group=LOGGING)

    # Older names, accepted so that older command lines keep working.
    host_state_slots: int | None = option(
        None, Integer(0), "adds state images to the host budget", group=OLDER
    )
    host_kv_mib: int | None = option(None, Integer(0), "adds MiB to the host budget", group=OLDER)
    max_private_continuations: int | None = option(
        None, Integer(0), "accepted, has no effect", group=OLDER
    )
    max_shared_prefixes: int | None = option(
        None, Integer(0), "accepted, has no effect", group=OLDER
    )
    max_long_anchors_per_continuation: int | None = option(
        None, Integer(0), "accepted, has no effect", group=OLDER
    )

    @property
    def kv_pages(self) -> int | None:
        """Pages of the KV pool, or None for `auto` (known once the weights are loaded).

        Raises `ConfigError` if the pool that was asked for is not legal.
        """
        if self.kv_capacity == "auto":
            return None
        if self.kv_capacity is None:
            return max(pages_for(self.max_context), self.max_concurrency)
        return pool_pages(
            int(self.kv_capacity),
            max_context=self.max_context,
            max_concurrency=self.max_concurrency,
        )

    @property
    def prefill_chunk_tokens(self) -> int:
        """Tokens of one prefill unit: never more than the context holds."""
        return min(self.prefill_chunk, self.max_context)

    @property
    def max_request_bytes(self) -> int:
        return self.max_request_mib << 20

    @property
    def pending_timeout_seconds(self) -> float:
        return self.pending_timeout_ms / 1000
