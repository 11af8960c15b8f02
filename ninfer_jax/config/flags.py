"""Reads a command line against a table of options.

Flags are absl flags on a `FlagValues` of this command line alone, so that two command lines in
one process share nothing. The arguments are taken apart here, not by absl, because absl also
accepts `-port`, `--nocors`, `--cors=false` and `--flagfile`, which are no flags of this program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from ninfer_jax.config.options import Option, closest
from ninfer_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """What a command line gave.

    Attributes:
      given: values by option name, only of options that were given; of an option that is given
        twice the last, of a repeatable one all.
    """

    given: Mapping[str, Any]


def read_command_line(options: Mapping[str, Option], arguments: Sequence[str]) -> CommandLine:
    """Parses `arguments`, which do not hold the program name. Raises `ConfigError`."""
    values = flags.FlagValues()
    for entry in options.values():
        values[entry.flag[2:]] = _define(entry)
    split = list(_split(options, arguments))
    values(["program", *(f"{entry.flag}={text}" for entry, text in split)])
    named = {entry.name: values[entry.flag[2:]] for entry, _ in split}
    return CommandLine(
        {
            name: tuple(flag.value) if options[name].repeatable else flag.value
            for name, flag in named.items()
        }
    )


class _StrictParser(flags.ArgumentParser):
    """An absl parser whose rules are those of an option's kind."""

    def __init__(self, entry: Option):
        self._entry = entry

    def parse(self, argument: Any) -> Any:
        if not self._entry.takes_value:
            return True
        return self._entry.parse(argument)

    def flag_type(self) -> str:
        return self._entry.kind.placeholder


def _define(entry: Option) -> flags.Flag:
    form = flags.MultiFlag if entry.repeatable else flags.Flag
    return form(
        parser=_StrictParser(entry),
        serializer=None,
        name=entry.flag[2:],
        default=None,
        help_string=entry.help,
    )


def _split(
    options: Mapping[str, Option], arguments: Sequence[str]
) -> Iterable[tuple[Option, str | None]]:
    """Takes arguments apart into options and their texts.

    `--port 80`, `--port=80`, `FILE`, and after `--` only positional arguments.
    """
    by_flag = {entry.flag: entry for entry in options.values() if not entry.positional}
    positional = next((entry for entry in options.values() if entry.positional), None)
    first_positional: str | None = None
    rest = iter(arguments)
    only_positional = False
    for argument in rest:
        if only_positional or not argument.startswith("-") or argument == "-":
            if positional is None:
                raise ConfigError(f"found the argument {argument!r}, expected flags only")
            if first_positional is not None:
                raise ConfigError(
                    f"found a second positional argument {argument!r} after "
                    f"{first_positional!r}, expected one artifact; --help lists all flags"
                )
            first_positional = argument
            yield positional, argument
            continue
        if argument == "--":
            only_positional = True
            continue
        flag, equals, text = argument.partition("=")
        flag = "--help" if flag == "-h" else flag
        entry = by_flag.get(flag)
        if entry is None:
            raise ConfigError(
                f"unknown flag {flag}; did you mean {closest(flag, by_flag)}? "
                "--help lists all flags"
            )
        if not entry.takes_value:
            if equals:
                raise ConfigError(f"{flag} is a switch and takes no value, found {text!r}")
            yield entry, ""
        elif equals:
            yield entry, text
        else:
            value = next(rest, None)
            if value is None or (value.startswith("--") and len(value) > 2):
                raise ConfigError(f"{flag} needs a value: {entry.kind.expected}")
            yield entry, value
