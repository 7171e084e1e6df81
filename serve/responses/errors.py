"""The error body of the API, and the HTTP status of every error.

{"error": {"message": "...", "type": "invalid_request_error", "param": "max_tokens", "code": null}}
"""

from __future__ import annotations

import logging

import msgspec

from intaglio.errors import BusyError, ContextLengthError, IntaglioError, UsageError, one_line

log = logging.getLogger(__name__)

RETRY_AFTER = 1  # seconds: a queue moves as soon as one text is finished


class ErrorDetails(msgspec.Struct):
    """The fields of an error in OpenAI's API."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of a response whose status is not 200, and the last event of a stream that fails."""

    error: ErrorDetails


class ApiError(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        """`param`: the field that is wrong; `retry_after`: seconds, for status 429 and 503."""
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.body = ErrorBody(ErrorDetails(message, kind, param, code))

    @property
    def headers(self) -> dict[str, str]:
        """Additional headers of the response."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {**headers, "WWW-Authenticate": "Bearer"} if self.status == 401 else headers


class FieldError(UsageError):
    """A field of a request that the model does not support."""

    def __init__(self, message: str, param: str):
        super().__init__(message)
        self.param = param


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """An invalid request; `param`: the field to change."""
    return ApiError(400, message, param=param, code=code)


def unsupported(field: str) -> ApiError:
    """A field that this server does not have."""
    return invalid(f"{field!r} is not supported by this server. Leave it out.", field)


def api_error(error: Exception, prompt: str | None = None) -> ApiError:
    """Convert any exception of the runtime. An unknown one is a bug in intaglio, and the server continues.

    `prompt`: the field that holds the prompts or texts of the request.

    Errors that are not the client's are logged.
    """
    if isinstance(error, ApiError):
        return error
    message = one_line(error) or repr(error)
    if isinstance(error, BusyError):
        return ApiError(429, message, "rate_limit_error", code="queue_full", retry_after=RETRY_AFTER)
    if isinstance(error, UsageError):
        code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
        param = error.param or prompt
        return ApiError(400, message, param=param, code=code)
    if not isinstance(error, IntaglioError):
        message = f"a bug in intaglio: {type(error).__name__}: {message}"
    log.error("%s", message, exc_info=error)
    return ApiError(500, message, "server_error", code="server_error")
