"""Config files: Python files with `get_config()`, which returns an `ml_collections.ConfigDict`.

A name is looked up as a path, then in `configs/` of the checkout, then in the copy that a wheel
carries as `ninfer_jax/configs/`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import traceback
import types
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ninfer_jax
from ninfer_jax.config.options import closest
from ninfer_jax.errors import ConfigError

_PACKAGE = Path(ninfer_jax.__file__).parent
SHIPPED_FOLDERS = (_PACKAGE.parent / "configs", _PACKAGE / "configs")
"""Where shipped configs are: in a checkout, and in an installed package."""


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """One loaded config file.

    Attributes:
      name: base name, for logs.
      sha256: hash of the text. The text itself is never logged, it may hold a key.
      values: what it sets, by key; keys that are None count as not given.
    """

    name: str
    sha256: str
    values: Mapping[str, Any]


def find_config_file(name: str, folders: Collection[Path] = SHIPPED_FOLDERS) -> Path:
    """The file that `name` stands for. Raises `ConfigError` naming the places searched."""
    for path in (Path(name), *(folder / name for folder in folders)):
        if path.is_file():
            return path
    shipped = sorted({path.name for folder in folders for path in folder.glob("*.py")})
    raise ConfigError(
        f"--config {name}: no such file, neither as a path nor among the shipped configs "
        f"({', '.join(shipped) or 'none found'})"
    )


def load_config_file(path: Path, known: Collection[str]) -> ConfigFile:
    """Runs a config file and returns its values.

    Raises `ConfigError` if the file cannot be read or run, has no `get_config()`, returns
    something else than a `ConfigDict`, or sets a key that is not in `known`.
    """
    # Imported here: a command line without a config file does not pay for it.
    import ml_collections

    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"config file {path}: {error.strerror or error}") from error
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        config = module.get_config() if hasattr(module, "get_config") else None
    except Exception as error:
        where = _line_in(error, path)
        raise ConfigError(f"config file {path}{where}: {type(error).__name__}: {error}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"config file {path}: expected a function get_config() that returns an "
            f"ml_collections.ConfigDict, found {_found(module, config)}"
        )
    values = config.to_dict()
    for key in values:
        if key not in known:
            raise ConfigError(
                f"config file {path}: unknown key {key!r}; did you mean {closest(key, known)!r}?"
            )
    return ConfigFile(
        name=path.name,
        sha256=hashlib.sha256(source).hexdigest(),
        values={key: value for key, value in values.items() if value is not None},
    )


def _line_in(error: Exception, path: Path) -> str:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return f", line {lines[-1]}" if lines else ""


def _found(module: types.ModuleType, config: Any) -> str:
    return type(config).__name__ if hasattr(module, "get_config") else "no get_config"
