"""The life of one generation request, from its place inside the gate to its one last line.

    async with Generation(service, protocol) as generation:   id and place, or 429
        await generation.prepare(parsed, gone)                 render and encode, deadline, 4xx
        generation.submit(stream=...)                          the engine owns it
        async for event in generation.events(): ...            until Finished, or an error

Leaving the block early (the client went away, an error) cancels the request at the engine, waits
for its end there, and writes the line; the place is free only then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import TracebackType

from ninfer_jax.engine.request import Delta, Failed, Finished, FinishReason, OutputEvent
from ninfer_jax.errors import NInferError
from ninfer_jax.server.admission import Ticket, preparation_timeout
from ninfer_jax.server.errors import ClientGoneError, as_wire_error
from ninfer_jax.server.mailbox import Mailbox
from ninfer_jax.server.prepare import ParsedChat, PreparedChat, prepare_chat
from ninfer_jax.server.service import Front, Service
from ninfer_jax.text.tool_calls import FallbackReason

_log = logging.getLogger(__name__)


class Generation:
    """One request; see the module text.

    Attributes:
      request_id: N of `req#N`.
      submitted: monotonic time of submission, once submitted.
    """

    def __init__(self, service: Service, protocol: str):
        """Starts the clock. Raises `UnavailableError` before an id is taken."""
        self._service = service
        self._protocol = protocol
        self._front: Front = service.require_ready()
        self._arrival = service.clock()
        self._ticket: Ticket | None = None
        self._mailbox: Mailbox | None = None
        self._outcome: Finished | Failed | None = None
        self._has_content = False
        self._logged = False
        self._prepared: PreparedChat | None = None
        self.request_id = service.next_request_id()
        self.submitted = 0.0

    async def __aenter__(self) -> Generation:
        try:
            self._ticket = self._service.gate.enter()
        except NInferError as error:
            self._end_early(error)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._mailbox is not None and self._outcome is None:
                self._front.engine.cancel(self.request_id)
                async for _ in self.events(raising=False):
                    pass
            if self._outcome is None and isinstance(error, Exception):
                self._end_early(error)
        finally:
            if self._mailbox is not None and self._outcome is None:
                # This task was itself cancelled while it waited: the server is being killed.
                self._front.engine.cancel(self.request_id)
            self._ticket.release()

    @property
    def prepared(self) -> PreparedChat:
        """The prepared request; there only after `prepare`."""
        if self._prepared is None:
            raise RuntimeError("the request has not been prepared")
        return self._prepared

    async def prepare(self, parsed: ParsedChat, gone: asyncio.Event) -> PreparedChat:
        """Renders and encodes the prompt on another thread.

        Raises `RequestError` for a prompt that cannot be served, `QueueTimeoutError` once the
        pending deadline has passed, `ClientGoneError` if the client has left meanwhile.
        """
        seconds = self._service.config.pending_timeout_seconds
        deadline = self._arrival + seconds
        try:
            async with asyncio.timeout(max(0.0, deadline - self._service.clock())):
                self._prepared = await self._service.offload(
                    prepare_chat,
                    parsed,
                    config=self._service.config,
                    max_context=self._front.max_context,
                    tokenizer=self._front.tokenizer,
                    template=self._front.template,
                    request_id=self.request_id,
                    deadline=deadline,
                )
        except TimeoutError:
            raise preparation_timeout(seconds) from None
        if gone.is_set():
            raise ClientGoneError
        return self._prepared

    def submit(self, *, stream: bool) -> None:
        """Hands the request to the engine. Raises `UnavailableError`."""
        prepared = self.prepared
        mailbox = Mailbox(asyncio.get_running_loop())
        self.submitted = self._service.clock()
        self._front.engine.submit(prepared.request, mailbox.put)
        self._mailbox = mailbox
        self._service.log.started(self._protocol, prepared, stream=stream)

    async def events(self, *, raising: bool = True) -> AsyncIterator[OutputEvent]:
        """The events of the engine up to `Finished`.

        If the engine reports `Failed`, its error is raised, unless `raising` is off.
        """
        if self._mailbox is None:
            raise RuntimeError("the request has not been submitted")
        while self._outcome is None:
            event = await self._mailbox.get()
            if isinstance(event, Delta):
                self._has_content = self._has_content or bool(event.content)
            elif isinstance(event, Finished | Failed):
                self._end(event)
            if isinstance(event, Failed):
                if raising:
                    raise event.error
                return
            yield event

    def _end(self, outcome: Finished | Failed) -> None:
        """Writes the one last line of a submitted request."""
        self._outcome = outcome
        if isinstance(outcome, Failed):
            self._end_early(outcome.error)
            return
        metrics, prepare_seconds = self._service.metrics, self.submitted - self._arrival
        cancelled = outcome.reason is FinishReason.CANCELLED
        metrics.ended("cancelled" if cancelled else "completed")
        metrics.finished(outcome, prepare_seconds)
        decoder = self.prepared.decoder
        reason = decoder.tool_parse.fallback_reason
        if reason is not FallbackReason.NONE:
            self._service.log.malformed_calls(self.request_id, reason.value)
        self._service.log.done(
            self._protocol,
            self.request_id,
            outcome,
            prepare_seconds=prepare_seconds,
            tool_calls=len(decoder.tool_calls),
            has_content=self._has_content,
        )

    def _end_early(self, error: Exception) -> None:
        """Writes the line of a request without an outcome of the engine."""
        if self._logged:
            return
        self._logged = True
        if isinstance(error, ClientGoneError):
            status, code, outcome = error.status, error.code, "cancelled"
        else:
            shown = as_wire_error(error)
            status, code = shown.status, shown.code
            started = self._mailbox is not None
            outcome = "failed" if started or status == 500 else "rejected"
        self._service.metrics.ended(outcome)
        self._service.log.ended_early(
            self._protocol, self.request_id, status, code, started=self._mailbox is not None
        )
        if not isinstance(error, NInferError | ClientGoneError):
            _log.error("req#%d: unforeseen error", self.request_id, exc_info=error)
