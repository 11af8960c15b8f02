"""From the arguments of an entry point to its configuration.

built-in default  <  config file  <  command line
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import ninfer_jax
from ninfer_jax.config.capacity import PAGE_TOKENS
from ninfer_jax.config.files import ConfigFile, find_config_file, load_config_file
from ninfer_jax.config.flags import read_command_line
from ninfer_jax.config.generate import GenerateConfig
from ninfer_jax.config.options import Option, option, options_of
from ninfer_jax.config.serve import ServeConfig
from ninfer_jax.config.values import Switch, file_path

C = TypeVar("C")
COMMAND = "Command"


@dataclasses.dataclass(frozen=True)
class CommandOptions:
    """Flags about the command itself; no config file can set them."""

    config: str | None = option(None, file_path(), "config file, e.g. demo.py", group=COMMAND)
    print_config: bool = option(
        False, Switch(), "print the resolved configuration as JSON and exit", group=COMMAND
    )
    version: bool = option(False, Switch(), "print the version and exit", group=COMMAND)
    help: bool = option(False, Switch(), "print this text and exit", group=COMMAND)


@dataclasses.dataclass(frozen=True)
class Resolution(Generic[C]):
    """A configuration and where it came from.

    Attributes:
      config: the configuration.
      given: the values that file and command line gave, without defaults.
      file: the config file, or None.
      message: text to print instead of running (help, version, configuration), or None.
    """

    config: C
    given: Mapping[str, Any]
    file: ConfigFile | None
    message: str | None


def resolve(config_class: type[C], arguments: Sequence[str], *, program: str) -> Resolution[C]:
    """Reads the arguments of an entry point, without the program name.

    Raises `ConfigError` for anything unknown, mistyped or out of range. Combinations, features
    that do not exist and files are not looked at here; see `checks`.

    A config file serves every entry point: it may set the keys of any, and each takes its own.
    """
    options = options_of(config_class)
    command_options = options_of(CommandOptions)
    line = read_command_line({**options, **command_options}, arguments).given
    command = CommandOptions(**{n: v for n, v in line.items() if n in command_options})
    if command.help:
        return Resolution(config_class(), {}, None, help_text(config_class, program=program))
    if command.version:
        return Resolution(config_class(), {}, None, f"ninfer_jax {ninfer_jax.__version__}")
    file = None
    given: dict[str, Any] = {}
    if command.config is not None:
        known = {**options_of(GenerateConfig), **options_of(ServeConfig), **options}
        file = load_config_file(find_config_file(command.config), known.keys())
        given = {
            name: known[name].check(value, source=f"config file {file.name}")
            for name, value in file.values.items()
        }
        if "max_new" in options:
            if "default_max_tokens" in given:
                given.setdefault("max_new", given["default_max_tokens"])
            # A file's pool is sized for a server's lanes; one answer needs one sequence.
            given.pop("kv_capacity", None)
    given.update((name, value) for name, value in line.items() if name in options)
    given = {name: value for name, value in given.items() if name in options}
    config = config_class(**given)
    message = print_config(config) if command.print_config else None
    return Resolution(config, given, file, message)


def print_config(config: Any) -> str:
    """The resolved configuration as JSON; secrets are redacted."""
    options = options_of(type(config))
    members = {name: entry.shown(getattr(config, name)) for name, entry in options.items()}
    if isinstance(config, ServeConfig) and config.kv_pages is not None:
        members["kv_capacity"] = config.kv_pages * PAGE_TOKENS
    return json.dumps(members, indent=2)


def help_text(config_class: type, *, program: str) -> str:
    """Usage, and all flags by group."""
    lines = [f"usage: {program} [FILE.ninfer] [flags]"]
    groups: dict[str, list[Option]] = {}
    for entry in [*options_of(config_class).values(), *options_of(CommandOptions).values()]:
        groups.setdefault(entry.group, []).append(entry)
    for group, entries in groups.items():
        lines += ["", f"{group}:"]
        for entry in entries:
            label = "FILE.ninfer" if entry.positional else f"{entry.flag} {entry.kind.placeholder}"
            default = entry.default
            shown = "" if default in (None, False, ()) else f" [{default}]"
            lines.append(f"  {label.rstrip():<42} {entry.help}{shown}")
    return "\n".join(lines)
