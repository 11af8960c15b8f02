"""Shared by the configuration tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ninfer_jax.config import ServeConfig
from ninfer_jax.config.resolve import Resolution, resolve
from ninfer_jax.errors import ConfigError


@pytest.fixture
def read() -> Callable[..., Resolution]:
    """Resolves a command line."""

    def read(*arguments: str, table: type = ServeConfig) -> Resolution:
        return resolve(table, arguments, program="program")

    return read


@pytest.fixture
def refusal(read) -> Callable[..., str]:
    """The message with which a command line is refused."""

    def refusal(*arguments: str, table: type = ServeConfig) -> str:
        with pytest.raises(ConfigError) as raised:
            read(*arguments, table=table)
        assert "\n" not in raised.value.message
        return raised.value.message

    return refusal
