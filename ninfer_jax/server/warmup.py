"""One short generation before the server is ready: a model that cannot answer never listens."""

from __future__ import annotations

import asyncio

from ninfer_jax.engine.request import Failed, Finished, Request, SamplingParams
from ninfer_jax.errors import NInferError
from ninfer_jax.server.mailbox import Mailbox
from ninfer_jax.server.service import ServedModel
from ninfer_jax.text.output import OutputDecoder

PROMPT = "Hi"
MOST_TOKENS = 4
_REQUEST_ID = 0
"""Requests of clients count from 1."""


async def warm_up(model: ServedModel) -> None:
    """Generates up to four tokens, without a deadline. Raises `NInferError` if that fails."""
    tokenizer = model.tokenizer
    prompt = tuple(tokenizer.encode(PROMPT, allow_special=False))[: model.info.max_context]
    mailbox = Mailbox(asyncio.get_running_loop())
    request = Request(
        request_id=_REQUEST_ID,
        prompt_ids=prompt,
        sampling=SamplingParams(temperature=0.0),
        max_tokens=min(MOST_TOKENS, model.info.max_context - len(prompt)),
        stop_token_ids=tokenizer.stop_token_ids,
        decoder=OutputDecoder(tokenizer, thinking_open=False),
    )
    model.engine.submit(request, mailbox.put)
    while not isinstance(event := await mailbox.get(), Finished | Failed):
        pass
    if isinstance(event, Failed):
        raise NInferError(f"the warm-up generation failed: {event.error}") from event.error
