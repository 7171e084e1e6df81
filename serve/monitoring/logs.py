"""The server's log on standard error: one JSON object a line, or one line of text, each with its request's id.

The logged fields of a request are in `Access`: never a prompt, a completion, a header or a query. Names and paths come
from clients, so every control character is escaped: none can end a line, or reach a terminal.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

Format = Literal["json", "text"]
ACCESS = logging.getLogger("intaglio.access")

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
# C0 and C1 controls, line and paragraph separators, and what changes the direction of writing.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Access(msgspec.Struct, omit_defaults=True):
    """One HTTP request, for the access log; endpoints fill in what they learn."""

    method: str
    path: str  # what follows a "?" is not logged
    status: int
    seconds: float = 0.0  # until the end of the response
    client: str | None = None  # address
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # prompt tokens that were in the cache
    finish_reason: str | None = None
    audio_seconds: float | None = None  # of a recording
    real_time_factor: float | None = None  # seconds of work per second of audio


@contextmanager
def request(identifier: str) -> Iterator[None]:
    """Log `identifier` as the request's id in every line of this context, and of tasks and threads begun with it."""
    token = _request_id.set(identifier)
    try:
        yield
    finally:
        _request_id.reset(token)


def request_id() -> str | None:
    """The id of the request that is being processed, if any."""
    return _request_id.get()


def log_access(access: Access) -> None:
    """Write the line of one request: a failure of the server as an error, any other as information."""
    path = access.path.split("?")[0].replace(" ", "%20")
    level = logging.ERROR if access.status >= 500 and not path.startswith("/health") else logging.INFO
    fields = {**msgspec.structs.asdict(access), "path": path, "seconds": round(access.seconds, 6)}
    fields = {name: value for name, value in fields.items() if value is not None}
    ACCESS.log(level, "%s %s %d", access.method, path, access.status, extra={"fields": fields})


def configure(style: Format = "json", level: int = logging.INFO) -> None:
    """Write the lines of this program and of uvicorn to standard error, and the warnings of other libraries.

    uvicorn's own access log, which has the query in it, is off. Handlers of other libraries are unchanged:
    `logging.config` would close them, and some of them the stream that they write to.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter({"json": JsonFormatter, "text": TextFormatter}[style]())
    for name, least in (("", logging.WARNING), ("intaglio", level), ("uvicorn", level)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False
    # A `uvicorn.Config` made earlier in this process may have given this one a level of its own.
    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a form that is malformed is the client's error


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, request_id, the fields of `Access`, and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({"request_id": identifier} if (identifier := request_id()) else {}),
            **getattr(record, "fields", {}),
            **({"traceback": self.formatException(record.exc_info)} if record.exc_info else {}),
        }
        text = msgspec.json.encode({name: _unicode(value) for name, value in line.items()}).decode()
        return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


class TextFormatter(logging.Formatter):
    """One line of text for people; a traceback follows on lines of its own, which are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        known = {"method", "path", "status"}  # they are the message
        fields = {name: value for name, value in getattr(record, "fields", {}).items() if name not in known}
        if identifier := request_id():
            fields["request_id"] = identifier
        rest = "".join(f" {name}={_safe(str(value))}" for name, value in fields.items())
        lines = [f"{_time(record)} {record.levelname:<7} {_safe(record.getMessage())}{rest}"]
        if record.exc_info:
            lines += [f"    {_safe(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _unicode(value: Any) -> Any:
    """Replace lone surrogates, which JSON cannot hold."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _safe(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", _unicode(text))
