"""The bridge from the engine's thread to the event loop: one mailbox per request."""

from __future__ import annotations

import asyncio
import collections

from ninfer_jax.engine.request import OutputEvent


class Mailbox:
    """Events of one request, in order. Bounded by the output limit of the request.

    `put` is the engine's sink: it may be called from any thread and never waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._events: collections.deque[OutputEvent] = collections.deque()
        self._arrival = asyncio.Event()

    def put(self, event: OutputEvent) -> None:
        """Adds an event. Once the loop is closed nobody reads, and the event is dropped."""
        self._events.append(event)
        try:
            self._loop.call_soon_threadsafe(self._arrival.set)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    async def get(self) -> OutputEvent:
        """Waits for the next event."""
        while not self._events:
            self._arrival.clear()
            # An event that came between the check and the clear has set nothing to wait for.
            if self._events:
                break
            await self._arrival.wait()
        return self._events.popleft()
