"""Arithmetic of the KV pool."""

from __future__ import annotations

import pytest

from ninfer_jax.config import ServeConfig
from ninfer_jax.config.capacity import auto_pool_pages, pages_for, pool_bounds, pool_pages
from ninfer_jax.errors import ConfigError

MIB = 1 << 20


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (334000, 5219)])
def test_pages(tokens, pages):
    assert pages_for(tokens) == pages


@pytest.mark.parametrize(
    ("max_context", "lanes", "lowest", "highest"),
    [(262144, 3, 4096, 12288), (64, 8, 8, 8), (1, 1, 1, 1), (129, 2, 3, 6)],
)
def test_bounds(max_context, lanes, lowest, highest):
    bounds = pool_bounds(max_context=max_context, max_concurrency=lanes)
    assert (bounds.lowest, bounds.highest) == (lowest, highest)


@pytest.mark.parametrize("tokens", [262144, 262145, 334000, 786432])
def test_explicit_pools_within_the_bounds(tokens):
    pages = pool_pages(tokens, max_context=262144, max_concurrency=3)
    assert pages == pages_for(tokens)


@pytest.mark.parametrize("tokens", [1, 262080, 786433])
def test_explicit_pools_outside_print_both_bounds(tokens):
    with pytest.raises(
        ConfigError, match=r"expected 262144 to 786432 tokens \(4096 to 12288 pages"
    ):
        pool_pages(tokens, max_context=262144, max_concurrency=3)


@pytest.mark.parametrize(
    ("free", "pages"),
    [(1024 * MIB + 4 * MIB, 4), (1024 * MIB + 5 * MIB - 1, 4), (9000 * MIB, 8)],
)
def test_auto_takes_the_largest_legal_pool(free, pages):
    assert auto_pool_pages(free, MIB, max_context=256, max_concurrency=2) == pages


def test_auto_prints_the_shortage():
    with pytest.raises(ConfigError, match=f"{MIB} are missing"):
        auto_pool_pages(1024 * MIB + 3 * MIB, MIB, max_context=256, max_concurrency=2)


@pytest.mark.parametrize(
    ("config", "pages"),
    [
        (ServeConfig(max_context=100), 2),
        (ServeConfig(max_context=64, max_concurrency=8), 8),
        (ServeConfig(kv_capacity="auto"), None),
        (ServeConfig(max_context=100, max_concurrency=2, kv_capacity=150), 3),
    ],
)
def test_pool_of_a_configuration(config, pages):
    assert config.kv_pages == pages


def test_a_prefill_unit_is_never_longer_than_the_context():
    assert ServeConfig(prefill_chunk=1024, max_context=100).prefill_chunk_tokens == 100
    assert ServeConfig(prefill_chunk=128, max_context=8192).prefill_chunk_tokens == 128
