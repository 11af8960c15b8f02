"""Configuration: the table of options, flags, config files, and the checks before start-up."""

from ninfer_jax.config.generate import GenerateConfig
from ninfer_jax.config.serve import ServeConfig

__all__ = ["GenerateConfig", "ServeConfig"]
