"""Log lines for people: `YYYY-MM-DD HH:MM:SS.mmm  LEVEL  message`, on stderr.

No control codes, so that a redirected log is plain text.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

LEVELS = {
    "trace": 5,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL + 10,
}


class LineFormatter(logging.Formatter):
    """One line a record; a traceback follows on lines of its own."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        return f"{moment}.{int(record.msecs):03d}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        return f"{self.formatTime(record)}  {record.levelname}  {record.getMessage()}"


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Sends the package's records from `level` on to `stream` (default: stderr).

    Other libraries are heard from WARNING on, in the same format.
    """
    for name, number in LEVELS.items():
        logging.addLevelName(number, name.upper())
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.WARNING))
    logging.getLogger("ninfer_jax").setLevel(LEVELS[level])
