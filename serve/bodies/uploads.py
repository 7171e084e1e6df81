"""Read forms with a file, multipart/form-data: the file to disk, bounded in bytes, time and number."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from intaglio.serve.bodies.json_body import check_encoding
from intaglio.serve.options import ServerOptions
from intaglio.serve.responses.errors import RETRY_AFTER, ApiError, invalid

FILE = "file"  # the name of the form's field that holds the file
FORM_BYTES = 1 << 16  # of a form without its file: values and headers
MAX_PARTS = 64  # of a form
UPLOADS_AT_A_TIME = 4  # of the largest size; smaller ones share their bytes
SLOWEST = 32_000  # bytes a second of an upload: speech at 16 kHz and 16 bits, sent at the speed of speech
CONVERT = "Convert it: ffmpeg -i FILE -ac 1 -ar 16000 OUT.flac"

log = logging.getLogger(__name__)


class Upload:
    """A file that a client sent. Its bytes count as used until `close`, also after the path has been removed."""

    def __init__(self, path: Path, release: Callable[[int], None]):
        self.path, self.size = path, 0
        self._release = release

    def discard(self) -> None:
        """Remove it soon: a large file takes a while, for which the event loop does not wait."""
        asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """Remove it; may be called twice, from any thread."""
        self.path.unlink(missing_ok=True)
        size, self.size = self.size, 0
        self._release(size)


class Uploads:
    """Reads the forms of a server into files in `folder`, whose names are its own."""

    def __init__(self, folder: Path, options: ServerOptions):
        self._folder, self._options = folder, options
        self._most = UPLOADS_AT_A_TIME * options.max_upload_bytes
        self._numbers = count()
        self._lock = threading.Lock()
        self._used = 0  # bytes of all uploads

    async def read(self, request: Request) -> tuple[list[tuple[str, str]], Upload]:
        """Return the fields of a form, and its file. Raises `ApiError` for anything else, and for exceeded limits."""
        boundary = _boundary(request)
        check_encoding(request)
        self._check_origin(request)
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._options.max_upload_bytes + FORM_BYTES:
            raise self._too_long()
        upload = Upload(self._folder / str(next(self._numbers)), self._give_back)
        try:
            with _FormReader(boundary, upload.path) as reader:
                await self._receive(request, reader, upload)
                return reader.finish(), upload
        except OSError as error:
            upload.discard()
            log.error("an upload cannot be written: %s", error.strerror)
            full = "the server cannot store the upload. Try again later."
            raise ApiError(503, full, "server_error", retry_after=RETRY_AFTER) from error
        except BaseException:
            upload.discard()
            raise

    async def _receive(self, request: Request, reader: _FormReader, upload: Upload) -> None:
        """Give the body to `reader`, in a thread: parsing and writing would stop the event loop."""
        timeout = self._options.body_timeout
        due = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(due) as limit:
                async for part in request.stream():
                    self._take(upload, len(part))
                    await asyncio.to_thread(reader.feed, part)
                    limit.reschedule(due + upload.size / SLOWEST)
        except TimeoutError:
            slow = f"the body arrived too slowly: after {timeout:g} seconds, {SLOWEST} bytes a second are expected."
            raise ApiError(408, f"{slow} Send the request again.", "timeout_error") from None
        except ClientDisconnect:
            raise invalid("the client disconnected before the body was complete.") from None

    def _take(self, upload: Upload, size: int) -> None:
        if upload.size + size > self._options.max_upload_bytes + FORM_BYTES:
            raise self._too_long()
        with self._lock:
            if self._used + size > self._most:
                message = f"the uploads of this server have {self._most} bytes, the maximum. Try again later."
                raise ApiError(429, message, "rate_limit_error", code="too_many_requests", retry_after=RETRY_AFTER)
            self._used += size
        upload.size += size

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._used -= size

    def _too_long(self) -> ApiError:
        most = self._options.max_upload_bytes
        message = f"the recording has more than {most} bytes, the maximum. {CONVERT}, or split it."
        return ApiError(413, message, param=FILE, code="body_too_long")

    def _check_origin(self, request: Request) -> None:
        """Refuse pages of other sites, unless they are allowed: a browser sends a form without asking first."""
        origin = request.headers.get("origin")
        allowed = self._options.cors_origins
        if origin is None or origin in allowed or "*" in allowed:
            return
        if urlsplit(origin).netloc != request.headers.get("host"):
            raise ApiError(403, f"origin {origin[:100]!r} may not send forms. Allow it with --cors-origin.")


def _boundary(request: Request) -> bytes:
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        shown = kind.decode("latin-1")[:60]
        raise ApiError(415, f"content type {shown!r}: expected multipart/form-data. Send the recording as a form.")
    if not (boundary := parameters.get(b"boundary")):
        raise invalid("content type: has no boundary. Let a library write the form, such as: curl -F file=@FILE.")
    return boundary


class _FormReader:
    """Parses a form that arrives in pieces, and writes its file. A context manager; its methods take a lock."""

    def __init__(self, boundary: bytes, path: Path):
        """Raises `ApiError` for a boundary that no form has."""
        self._fields: list[tuple[str, str]] = []
        self._path = path
        self._lock = threading.Lock()  # a caller that is cancelled closes the file while a piece is written
        self._bytes = 0  # of values and headers
        self._parts = 0
        self._found = self._ended = False
        self._header, self._content = bytearray(), bytearray()  # of the header that is read
        self._name: str | None = None  # of the part that is read
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._read_header,
                    "on_header_value": self._read_content,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._begin_value,
                    "on_part_data": self._read_value,
                    "on_part_end": self._end_value,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _malformed(error) from error

    def __enter__(self) -> _FormReader:
        self._file = self._path.open("xb", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._file.close()

    def feed(self, data: bytes) -> None:
        """Take the next piece. Raises `ApiError` for what is no form, `OSError` if the file cannot be written."""
        with self._lock:
            if self._file.closed:
                return
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise _malformed(error) from error

    def finish(self) -> list[tuple[str, str]]:
        """Return the fields but the file. Raises `ApiError` if the form is not complete, or has no file."""
        if not self._ended:
            raise invalid("the form is truncated: its last boundary is missing. Send it again.")
        if not self._found:
            raise invalid(f"{FILE}: is missing. Add the recording.", FILE)
        return self._fields

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise invalid(f"the form has more than {MAX_PARTS} fields, the maximum. Leave some out.")
        self._name = None

    def _read_header(self, data: bytes, start: int, end: int) -> None:
        self._keep(self._header, data[start:end])

    def _read_content(self, data: bytes, start: int, end: int) -> None:
        self._keep(self._content, data[start:end])

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            name = parse_options_header(bytes(self._content))[1].get(b"name", b"")
            self._name = _text(name, "the name of a field")
        self._header.clear()
        self._content.clear()

    def _begin_value(self) -> None:
        if not self._name:
            raise invalid("a part of the form has no name. Add one.")
        if self._name == FILE:
            if self._found:
                raise invalid(f"{FILE}: is there twice. Send one recording per request.", FILE)
            self._found = True

    def _read_value(self, data: bytes, start: int, end: int) -> None:
        if self._name != FILE:
            self._keep(self._value, data[start:end])
            return
        rest = memoryview(data)[start:end]
        while rest:
            rest = rest[self._file.write(rest) :]

    def _end_value(self) -> None:
        assert self._name is not None, "a part without a name was refused"
        if self._name != FILE:
            self._fields.append((self._name, _text(bytes(self._value), self._name[:100])))
            self._value.clear()

    def _end(self) -> None:
        self._ended = True

    def _keep(self, kept: bytearray, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > FORM_BYTES:
            message = f"the form's fields have more than {FORM_BYTES} bytes, the maximum. Send shorter ones."
            raise ApiError(413, message, code="body_too_long")
        kept += data


def _malformed(error: Exception) -> ApiError:
    return invalid(f"the body is not a valid form: {str(error)[:200]}. Let a library write it.")


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"{what}: is not UTF-8. Encode it.") from error
