"""What the output decoder says of one committed token."""

from __future__ import annotations

import enum


class TokenVerdict(enum.Enum):
    """Whether a sequence goes on after a token."""

    CONTINUE = 0
    STOP_STRING = 1
