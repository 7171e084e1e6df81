"""Middleware of every HTTP request: an id, a log line, metrics, and authentication."""

from __future__ import annotations

import hmac
import time
import uuid

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from intaglio.serve.bodies.arrivals import Arrivals
from intaglio.serve.monitoring.logs import Access, log_access, request
from intaglio.serve.monitoring.metrics import ServerMetrics
from intaglio.serve.monitoring.observation import KEY
from intaglio.serve.responses.errors import ApiError

REASONS = {
    401: "key",
    403: "origin",
    408: "timeout",
    413: "too_long",
    415: "invalid",
    429: "busy",
    503: "shutting_down",
}
CLOSED = 499  # the status in the log of a client that disconnected
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
MAX_ID = 128  # characters of an id that a client gives


class Observed:
    """Gives a request its id, and counts and logs it when its response has been sent."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics):
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identifier, began, status, ended = _identifier(scope), time.perf_counter(), CLOSED, False
        client = scope["client"][0] if scope.get("client") else None
        access = Access(scope["method"], scope["path"], CLOSED, client=client)
        scope.setdefault("state", {})[KEY] = access

        async def observed(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", identifier.encode())]}
            await send(message)
            ended = ended or (message["type"] == "http.response.body" and not message.get("more_body", False))

        with request(identifier):
            try:
                await self._app(scope, receive, observed)
            finally:
                access.status, access.seconds = status if ended else CLOSED, time.perf_counter() - began
                self._report(scope, access)

    def _report(self, scope: Scope, access: Access) -> None:
        route, status, model = getattr(scope.get("route"), "path", "other"), access.status, access.model or ""
        method = access.method if access.method in METHODS else "other"  # each value is a series of its own
        self._metrics.http(route, method, status, access.seconds)
        if status in REASONS or status == 400:
            self._metrics.rejected(model, REASONS.get(status, "invalid"))
        if status == CLOSED:
            self._metrics.cancelled(model)
        log_access(access)


class Gate:
    """Asks for an API key, and refuses requests while too many arrive. /health is open to all."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...], arrivals: Arrivals):
        self._app, self._arrivals = app, arrivals
        self._keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        try:
            if scope["type"] == "http" and not scope["path"].startswith("/health"):
                self._admit(scope)
        except ApiError as error:
            body = msgspec.json.encode(error.body)
            await Response(body, error.status, error.headers, "application/json")(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if scope["type"] == "http":
                self._arrivals.leave(scope["state"][KEY])

    def _admit(self, scope: Scope) -> None:
        """Raise `ApiError` for a rejected request."""
        if self._keys and not self._has_key(scope):
            missing = "no valid API key. Send the header Authorization: Bearer KEY."
            raise ApiError(401, missing, code="invalid_api_key")
        if scope["method"] == "POST":
            self._arrivals.enter(scope["state"][KEY])

    def _has_key(self, scope: Scope) -> bool:
        """Compare with every key, in a time that does not depend on them."""
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        found = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(found)


def _identifier(scope: Scope) -> str:
    """The id that the client gave in X-Request-Id, if it is short and plain; else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    plain = given.isascii() and given.replace("-", "").replace("_", "").isalnum()
    return given if plain and len(given) <= MAX_ID else f"req-{uuid.uuid4().hex}"
