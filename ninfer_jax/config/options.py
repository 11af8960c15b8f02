"""Options as fields of frozen dataclasses.

A field made with `option` is one line of the one table of options: name, default, kind, help
and group stand there and nowhere else. Flags, config keys, help text and checks follow from it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ninfer_jax.config.values import Kind, Repeated, Switch
from ninfer_jax.errors import ConfigError

_METADATA = "option"


@dataclasses.dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
      name: the field and config key, `max_context`; the flag is `--max-context`.
      kind: which values it takes.
      default: its value when nobody gives one; None where there is none.
      help: one line.
      group: heading in the help text.
      secret: its value is never shown.
      positional: given on the command line without a flag.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    group: str
    secret: bool = False
    positional: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def takes_value(self) -> bool:
        return not isinstance(self.kind, Switch)

    @property
    def repeatable(self) -> bool:
        return isinstance(self.kind, Repeated)

    def parse(self, text: str) -> Any:
        """Reads a command-line value; raises `ConfigError`."""
        try:
            return self.kind.parse(text)
        except ValueError:
            label = self.name if self.positional else self.flag
            raise ConfigError(self._refusal(label, text)) from None

    def check(self, value: Any, *, source: str) -> Any:
        """Accepts a value of the config file `source`; raises `ConfigError`."""
        try:
            return self.kind.check(value)
        except ValueError:
            raise ConfigError(f"{source}: {self._refusal(self.name, value)}") from None

    def shown(self, value: Any) -> Any:
        """The value as it may be printed."""
        return "<redacted>" if self.secret and value is not None else value

    def _refusal(self, label: str, found: Any) -> str:
        shown = "a value of the wrong form" if self.secret else repr(found)
        return f"{label}: found {shown}, expected {self.kind.expected}"


def option(
    default: Any,
    kind: Kind,
    text: str,
    *,
    group: str,
    secret: bool = False,
    positional: bool = False,
) -> Any:
    """A dataclass field that is an option with the help `text`; see `Option`."""
    metadata = {
        "kind": kind,
        "help": text,
        "group": group,
        "secret": secret,
        "positional": positional,
    }
    return dataclasses.field(default=default, metadata={_METADATA: metadata})


def same_option(config_class: type, name: str, **changes: Any) -> Any:
    """The option `name` of another table, with `changes` such as another default."""
    known = options_of(config_class)[name]
    changed = dataclasses.replace(known, **changes)
    return option(
        changed.default,
        changed.kind,
        changed.help,
        group=changed.group,
        secret=changed.secret,
        positional=changed.positional,
    )


def options_of(config_class: type) -> Mapping[str, Option]:
    """The options of a dataclass by name, in order."""
    return {
        field.name: Option(name=field.name, default=field.default, **field.metadata[_METADATA])
        for field in dataclasses.fields(config_class)
        if _METADATA in field.metadata
    }


def closest(name: str, known: Iterable[str]) -> str:
    """The known name most like `name`."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]
