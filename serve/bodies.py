"""Read the body of a request: bounded in bytes and in time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from intaglio.serve.errors import ApiError, invalid
from intaglio.serve.options import ServerOptions


async def read_body(request: Request, options: ServerOptions) -> bytes:
    """Return the body. Raises `ApiError` for one that is too long, takes too long to arrive, or is no JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a browser sends other types to any server, without asking it first
        raise ApiError(415, f"content type {kind[:60]!r}: expected application/json. Set the header Content-Type.")
    check_encoding(request)
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said) > options.max_body_bytes:
        raise _too_long(options)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(options.body_timeout):
            async for part in request.stream():
                size += len(part)
                if size > options.max_body_bytes:
                    raise _too_long(options)
                parts.append(part)
    except TimeoutError:
        late = f"the body did not arrive within {options.body_timeout:g} seconds. Send the request again."
        raise ApiError(408, late, "timeout_error") from None
    except ClientDisconnect:
        raise invalid("the client went away before the whole body arrived.") from None
    return b"".join(parts)


def check_encoding(request: Request) -> None:
    """Raise `ApiError` for a body that is compressed."""
    encoding = ", ".join(request.headers.getlist("content-encoding")).lower()
    if encoding.strip() not in ("", "identity"):
        said = f"content encoding {encoding[:60]!r}: the server takes bodies without one."
        raise ApiError(415, f"{said} Send the body uncompressed, without the header Content-Encoding.")


def _too_long(options: ServerOptions) -> ApiError:
    message = f"the body has more than {options.max_body_bytes} bytes, the maximum. Send a shorter one."
    return ApiError(413, message, code="body_too_long")
