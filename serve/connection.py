"""The connections of a server: clients that send nothing, or read nothing, are disconnected."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from intaglio.serve.options import ServerOptions


def connection_class(options: ServerOptions) -> type[HttpToolsProtocol]:
    """The class of uvicorn's connections, with the time limits of `options`."""

    class LimitedConnection(Connection):
        body_timeout, send_timeout = options.body_timeout, options.send_timeout

    return LimitedConnection


class Connection(HttpToolsProtocol):
    """A connection that is closed if it waits too long for its client.

    1. For the headers of a request: `body_timeout` seconds after the connection began, or after it could have been
       closed as idle. uvicorn itself limits only the idle time between a response and the next byte.
    2. For the client to read: `send_timeout` seconds without a byte leaving this process, whatever the response is.
       uvicorn waits for ever, and it waits for unsent bytes even when it closes a connection.
    """

    body_timeout: float
    send_timeout: float
    _headers_due: asyncio.TimerHandle | None = None
    _read_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        # `pause_writing` as soon as the kernel takes no more; with 0, TLS would pause without unsent bytes.
        transport.set_write_buffer_limits(high=1, low=0)
        self._expect_headers(self.body_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        _cancel(self._headers_due)
        _cancel(self._read_due)
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """A request begins."""
        _cancel(self._headers_due)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A request ends, and the next one may follow, unless it is here already."""
        follows = bool(self.pipeline)
        super().on_response_complete()
        if not follows:
            self._expect_headers(self.timeout_keep_alive + self.body_timeout)

    def _expect_headers(self, seconds: float) -> None:
        _cancel(self._headers_due)
        self._headers_due = self.loop.call_later(seconds, self._check_headers)

    def _check_headers(self) -> None:
        """Disconnect a client that has sent no request; a closing connection has a response to finish."""
        if not self.transport.is_closing():
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client does not read as fast as the response is written."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Everything was sent."""
        _cancel(self._read_due)
        super().resume_writing()

    def _expect_reading(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._read_due = self.loop.call_later(self.send_timeout, self._check_reading, unsent)

    def _check_reading(self, unsent: int) -> None:
        """Disconnect a client that has read nothing since there were `unsent` bytes left."""
        if self.transport.get_write_buffer_size() < unsent:
            self._expect_reading()
        else:
            self.transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
