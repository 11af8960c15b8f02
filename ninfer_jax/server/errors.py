"""Errors on the wire: the OpenAI envelope."""

from __future__ import annotations

import msgspec

from ninfer_jax.errors import NInferError


class ErrorMember(msgspec.Struct):
    """The `error` member; unused parts are null."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct):
    """`{"error": {"message", "type", "param", "code"}}`."""

    error: ErrorMember


class ClientGoneError(Exception):
    """The client closed its connection: nobody reads the reply (logged as HTTP 499)."""

    status = 499
    code = "client_disconnected"


def as_wire_error(error: Exception) -> NInferError:
    """The error as a client may see it: anything unforeseen hides behind a fixed message."""
    if isinstance(error, NInferError):
        return error
    return NInferError("internal error; the server's log has the details")


def error_body(error: Exception) -> bytes:
    """The JSON body that reports `error`."""
    shown = as_wire_error(error)
    member = ErrorMember(shown.message, shown.error_type, shown.param, shown.code)
    return msgspec.json.encode(ErrorEnvelope(member))
