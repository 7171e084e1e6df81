"""The connections of a server: limits on bytes outside of requests, and timeouts for clients."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import httptools
import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from intaglio.serve.options import ServerOptions
from intaglio.serve.responses.errors import ApiError

HEAD_BYTES = 1 << 16  # of a request line and headers; of trailers, and of anything else between the bytes of a body
HEADERS = 100  # of a request, trailers included
PIECE = 1 << 12  # bytes that are parsed at a time: the limit above is exceeded by less than this
LINGER_SECONDS, LINGER_BYTES = (
    2.0,
    1 << 22,
)  # bytes that a rejected client may still send, to read the response
BEGINNING = b"HTTP/1.1 "  # of every response
PROBES = (0.02, 1.0)  # seconds until the first check whether a client is gone, and between later ones


def connection_class(options: ServerOptions) -> type[HttpToolsProtocol]:
    """The class of uvicorn's connections, with the time limits of `options`."""

    class LimitedConnection(Connection):
        body_timeout, send_timeout = options.body_timeout, options.send_timeout

    return LimitedConnection


class Connection(HttpToolsProtocol):
    """A connection that is closed if its client is too slow, or sends too many bytes outside of bodies.

    1. For the headers of a request: `body_timeout` seconds after the connection began, or after it could have been
       closed as idle. uvicorn itself limits only the idle time between a response and the next byte.
    2. For the client to read: `send_timeout` seconds without a byte sent, for any response.
       uvicorn waits for ever, and it waits for unsent bytes even when it closes a connection.
    3. Headers are counted while they arrive, and trailers too, which uvicorn would add to the headers.
    4. A client that closes only its sending half gets all its responses. uvicorn takes it for gone.
    """

    body_timeout: float
    send_timeout: float
    _headers_due: asyncio.TimerHandle | None = None
    _read_due: asyncio.TimerHandle | None = None
    _gone_due: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None  # the one that is answered; those in the pipeline wait
    _bytes = 0  # since the last header block or byte of a body
    _headers = 0  # of the last request
    _in_body = False
    _too_large = False
    _refused = False
    _discarded = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        # `pause_writing` as soon as the kernel takes no more; with 0, TLS would pause without unsent bytes.
        transport.set_write_buffer_limits(high=1, low=0)
        self._expect_headers(self.body_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        for timer in (self._headers_due, self._read_due, self._gone_due):
            _cancel(timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The client sent something."""
        for start in range(0, len(data), PIECE):
            if self.transport.is_closing():
                return
            if self._refused:
                self._discard(len(data) - start)
                return
            piece = data[start : start + PIECE]
            self._bytes += len(piece)
            try:
                self._feed(piece)
                self._too_large = self._bytes > HEAD_BYTES
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            else:
                if self._too_large:
                    self.send_400_response("Too long HTTP request received.")

    def _feed(self, data: bytes) -> None:
        """Parse `data`. Upgrades to another protocol are ignored: Java's client requests HTTP/2 in every request.

        The parser does not read the body of such a request, so it gets the request once more without the upgrade.
        """
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            version = self.parser.get_http_version().encode()
            lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
            lines += [b"%s: %s" % header for header in self.headers if header[0] not in (b"upgrade", b"connection")]
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"\r\n".join([*lines, b"", b""]) + data[wish.args[0] :])

    @property
    def _upgrades(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._headers = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A complete header or trailer; trailers are not used."""
        self._headers += 1
        if self._headers > HEADERS:
            self._too_large = True
            raise ValueError("too many headers")  # the parser stops, and `send_400_response` is called
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request begins."""
        if self._upgrades:
            return
        _cancel(self._headers_due)
        self._bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Bytes of a body."""
        self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        if self._upgrades:
            return
        self._in_body = False
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

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

    def send_400_response(self, msg: str) -> None:
        """Reject an invalid or too large request, after the responses to earlier ones."""
        self.logger.warning(msg)
        if self._too_large:
            limits = f"{HEAD_BYTES} bytes or {HEADERS} headers"
            error = ApiError(431, f"the request line and headers exceed {limits}. Send fewer and shorter headers.")
        else:
            error = ApiError(400, "this is not valid HTTP. Send an HTTP/1.1 request.")
        self._refuse(error)

    def _refuse(self, error: ApiError) -> None:
        """Answer with `error`, and close the connection when the client has had the time to read it."""
        self._refused = True
        cycle, following = self.cycle, not self._in_body
        if cycle is not None and not cycle.response_complete and (following or cycle.response_started):
            cycle.keep_alive = False  # its response comes first, and is the last one
            return
        if cycle is not None and cycle is not self._running:  # part of a request that waits for others
            self.transport.abort()
            return
        if cycle is None or following or not cycle.response_started:
            body = msgspec.json.encode(error.body)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.status] + head + body)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        # Closing at once would reset the connection of a client that still sends, which loses the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._gone_due = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > LINGER_BYTES:
            self.transport.abort()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more: it gets the responses to all complete requests, if it still reads.

        With TLS, asyncio closes the connection in any case.
        """
        cycle = self.cycle
        if self.scheme == "https" or cycle is None or cycle.response_complete:
            return False
        if cycle.more_body:
            if not self._refused:
                self._refuse(ApiError(400, "the body ended early. Send as many bytes as its header says."))
            return False
        cycle.keep_alive = False
        self._check_presence(PROBES[0])
        self._probe()
        return True

    def _probe(self) -> None:
        """Probe with bytes that change no response; the kernel of a disconnected client rejects them.

        That is the beginning of the status line, or in a chunked response a leading zero of the next chunk's size.
        """
        running, transport = self._running, self.transport
        assert running is not None, "there is a request"
        if not running.response_started:

            def write(data: bytes) -> None:
                running.transport = transport
                transport.write(data.removeprefix(BEGINNING))

            running.transport = SimpleNamespace(  # type: ignore[assignment]
                write=write, close=transport.close, is_closing=transport.is_closing
            )
            transport.write(BEGINNING)
        elif running.chunked_encoding and not running.response_complete:
            transport.write(b"0")

    def _check_presence(self, seconds: float) -> None:
        """Disconnect a client that has rejected what was sent, and look again later."""
        self._gone_due = self.loop.call_later(seconds, self._check_presence, PROBES[1])
        sock = self.transport.get_extra_info("socket")
        if not self.transport.is_closing() and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
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
