"""Events on their way from the worker to the sinks, in the order in which they came true."""

from __future__ import annotations

import logging

from ninfer_jax.engine.request import OutputEvent
from ninfer_jax.engine.sequence import Sequence

_log = logging.getLogger(__name__)


class Outbox:
    """Collects events and delivers them later, so that delivery overlaps device work."""

    def __init__(self) -> None:
        self._events: list[tuple[Sequence, OutputEvent]] = []

    def put(self, sequence: Sequence, event: OutputEvent) -> None:
        self._events.append((sequence, event))

    def deliver(self) -> set[int]:
        """Calls the sinks; returns the ids of requests whose sink raised.

        A sink that raises gets its later events all the same, above all the last one.
        """
        events, self._events = self._events, []
        broken: set[int] = set()
        for sequence, event in events:
            try:
                sequence.sink(event)
            except Exception:
                _log.exception("request %d: its sink raised", sequence.request_id)
                broken.add(sequence.request_id)
        return broken
