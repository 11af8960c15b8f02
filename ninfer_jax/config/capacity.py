"""How large the KV pool is: arithmetic on pages of 64 tokens.

With lanes C and pages(x) = ceil(x / 64):

    lowest legal pool    max(pages(max_context), C)     one request of full length fits when alone
    highest useful pool  C * pages(max_context)         every lane holds one of full length

Worked example: max_context 262,144 (4,096 pages), C = 3, a pool of 334,000 tokens asked for:
5,219 pages = 334,016 tokens, between 4,096 and 12,288.
"""

from __future__ import annotations

import dataclasses

from ninfer_jax.errors import ConfigError

PAGE_TOKENS = 64
AUTO_HEADROOM_BYTES = 1024 << 20
"""Device memory that an automatic pool leaves free."""


@dataclasses.dataclass(frozen=True)
class PoolBounds:
    """Lowest legal and highest useful pool, in pages."""

    lowest: int
    highest: int


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` positions.  0 -> 0,  64 -> 1,  65 -> 2."""
    return -(-tokens // PAGE_TOKENS)


def pool_bounds(*, max_context: int, max_concurrency: int) -> PoolBounds:
    """The bounds above."""
    pages = pages_for(max_context)
    return PoolBounds(lowest=max(pages, max_concurrency), highest=max_concurrency * pages)


def pool_pages(tokens: int, *, max_context: int, max_concurrency: int) -> int:
    """Pages of a pool asked for as `tokens`. Raises `ConfigError` outside the bounds."""
    bounds = pool_bounds(max_context=max_context, max_concurrency=max_concurrency)
    pages = pages_for(tokens)
    if not bounds.lowest <= pages <= bounds.highest:
        raise ConfigError(
            f"--kv-capacity: found {tokens} tokens ({pages} pages of {PAGE_TOKENS}), expected "
            f"{bounds.lowest * PAGE_TOKENS} to {bounds.highest * PAGE_TOKENS} tokens "
            f"({bounds.lowest} to {bounds.highest} pages) for --max-context {max_context} and "
            f"--max-concurrency {max_concurrency}"
        )
    return pages


def auto_pool_pages(
    free_bytes: int,
    bytes_per_page: int,
    *,
    max_context: int,
    max_concurrency: int,
    headroom_bytes: int = AUTO_HEADROOM_BYTES,
) -> int:
    """The largest legal pool that leaves `headroom_bytes` of `free_bytes` free.

    `free_bytes` is what weights and fixed buffers have left. Raises `ConfigError` with the
    shortage if even the lowest legal pool does not fit.
    """
    bounds = pool_bounds(max_context=max_context, max_concurrency=max_concurrency)
    fitting = (free_bytes - headroom_bytes) // bytes_per_page
    if fitting < bounds.lowest:
        needed = bounds.lowest * bytes_per_page + headroom_bytes
        raise ConfigError(
            f"--kv-capacity auto: the smallest pool ({bounds.lowest} pages) and "
            f"{headroom_bytes} free bytes need {needed} bytes of device memory, "
            f"{free_bytes} are free, {needed - free_bytes} are missing; lower --max-context"
        )
    return min(fitting, bounds.highest)
