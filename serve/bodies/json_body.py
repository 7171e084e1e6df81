"""Read and decode the body of a request: bounded in bytes and time; unsupported fields are rejected by name."""

from __future__ import annotations

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from intaglio.errors import one_line
from intaglio.serve.options import ServerOptions
from intaglio.serve.responses.errors import ApiError, invalid, unsupported

Body = TypeVar("Body", bound=msgspec.Struct)

# Fields of the API that are not supported, but whose default changes nothing: accepted with these values only.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "best_of": (1,),
    "echo": (False,),
    "include": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes
PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")


async def read_body(request: Request, options: ServerOptions) -> bytes:
    """Return the body. Raises `ApiError` for another content type, and a body that is too long or too late."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a browser sends other types to any server, without asking it first
        raise ApiError(415, f"content type {kind[:60]!r}: expected application/json. Set the header Content-Type.")
    check_encoding(request)
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > options.max_body_bytes:
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
        raise invalid("the client disconnected before the body was complete.") from None
    return b"".join(parts)


def check_encoding(request: Request) -> None:
    """Raise `ApiError` for a body that is compressed."""
    encoding = ", ".join(request.headers.getlist("content-encoding")).lower()
    if encoding.strip() not in ("", "identity"):
        message = f"content encoding {encoding[:60]!r}: the server takes bodies without one."
        raise ApiError(415, f"{message} Send the body uncompressed, without the header Content-Encoding.")


def _too_long(options: ServerOptions) -> ApiError:
    message = f"the body has more than {options.max_body_bytes} bytes, the maximum. Send a shorter one."
    return ApiError(413, message, code="body_too_long")


def decode(body: bytes, kind: type[Body]) -> Body:
    """Decode `body` as `kind`. Raises `ApiError` that names an invalid or unsupported field.

    A field with the value null counts as missing, as in OpenAI's API.
    """
    body = body.removeprefix(BOM_UTF8)
    try:
        fields = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_checked_object, parse_int=len, parse_float=len)  # their values are not used
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        compressed = next((name for start, name in COMPRESSED.items() if body.startswith(start)), None)
        reason = f"it begins like {compressed}" if compressed else one_line(error, 200)
        raise invalid(f"the body is not valid JSON: {reason}. Send one JSON object.") from error
    if not isinstance(fields, dict):
        raise invalid(f"the body is a JSON {_kind(fields)}, expected an object with fields. Send one JSON object.")
    known = _field_names(kind)
    given = {name: value for name, value in fields.items() if value is not None and not _neutral(name, value, known)}
    for items in (given.get("messages"), given.get("input")):  # clients send earlier answers, with their empty fields
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict):
                for name in [name for name, value in item.items() if value is None]:
                    del item[name]
    return converted(given, kind)


def converted(given: Mapping[str, object], kind: type[Body], strict: bool = True) -> Body:
    """Convert the fields of a request to `kind`; with `strict` false, from text. Raises `ApiError` as `decode`."""
    if unknown := sorted(given.keys() - _field_names(kind)):
        raise unsupported(unknown[0][:100])
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _validation(error) from error
    except RecursionError as error:
        raise invalid("the body is nested too deeply. Send a flatter one.") from error


def _checked_object(members: list[tuple[str, object]]) -> None:
    """Raise `ApiError` for an object with a key twice: decoding would keep the last value."""
    names = [name for name, _ in members]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)[:100]
        raise invalid(f"{twice!r} is twice in one object. Send it once.", twice)


@cache
def _field_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def _neutral(name: str, value: object, known: frozenset[str]) -> bool:
    return name not in known and name in NEUTRAL and value in NEUTRAL[name]


def _validation(error: msgspec.ValidationError) -> ApiError:
    text = one_line(error)
    found = PATH.search(text)
    where = found.group(1) if found else ""
    if missing := re.search(r"missing required field `(\w+)`", text):
        where = f"{where}.{missing.group(1)}" if where else missing.group(1)
        return invalid(f"{where}: is missing. Add it.", where)
    if unknown := re.search(r"unknown field `(.*?)`", text):
        where = f"{where}.{unknown.group(1)}" if where else unknown.group(1)
        return unsupported(where[:200])
    plain = PATH.sub("", text).replace("`", "")
    return invalid(f"{where or 'the body'}: {plain[:1].lower()}{plain[1:]}.", where or None)


def _kind(value: Any) -> str:
    names = {list: "list", str: "string", int: "number", float: "number", bool: "boolean"}
    return names.get(type(value), "null")
