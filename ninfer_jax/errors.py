"""The errors a user can cause or must see, each with its wire code.

A `NInferError` says what was found, what was expected and what to do. Everything else that
is raised in this package is a bug. The HTTP status and the code are those of
`docs/serving.md`; entry points print the message on one line and exit with status 1.
"""

from __future__ import annotations


class NInferError(Exception):
    """A fault with a message meant for a person.

    Attributes:
      message: one line: what was found, what was expected, what to do.
      status: HTTP status used when the fault ends a request.
      code: machine-readable code of the OpenAI error envelope, or None.
      error_type: `type` member of the OpenAI error envelope.
      param: request field at fault, or None.
    """

    status: int = 500
    code: str | None = "internal_error"
    error_type: str = "server_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class ConfigError(NInferError):
    """A flag, a config file or a combination of settings that cannot be served."""

    code = "invalid_config"


class ArtifactError(NInferError):
    """A weight file that is malformed, truncated, foreign, or lacks a requested part."""

    code = "invalid_artifact"


class RequestError(NInferError):
    """A request that is malformed or asks for something this server cannot do (HTTP 4xx)."""

    status = 400
    code = None
    error_type = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        status: int | None = None,
    ):
        super().__init__(message, code=code, param=param)
        if status is not None:
            self.status = status


class OverloadedError(NInferError):
    """Lanes and queue are full: answered at once, never queued (HTTP 429)."""

    status = 429
    code = "server_overloaded"
    error_type = "rate_limit_error"


class QueueTimeoutError(NInferError):
    """The request was not admitted before its pending deadline (HTTP 503)."""

    status = 503
    code = "request_queue_timeout"


class UnavailableError(NInferError):
    """The engine has failed or is shutting down (HTTP 503)."""

    status = 503
    code = "service_unavailable"


class NumericalError(NInferError):
    """The model produced a logit that is not finite; the sequence was ended, nothing committed."""

    code = "internal_error"
