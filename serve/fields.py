"""Decode the JSON body of a request: every field is either supported, or refused by its name."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from intaglio.errors import one_line
from intaglio.serve.errors import ApiError, invalid, unsupported

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


def decode(body: bytes, kind: type[Body]) -> Body:
    """Decode `body` as `kind`. Raises `ApiError` that names the field which is wrong, or not supported.

    A field with the value null counts as left out, as in OpenAI's API.
    """
    body = body.removeprefix(BOM_UTF8)
    try:
        fields = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_checked_object, parse_int=len, parse_float=len)  # their values are not used
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        compressed = next((name for start, name in COMPRESSED.items() if body.startswith(start)), None)
        said = f"it begins like {compressed}" if compressed else one_line(error, 200)
        raise invalid(f"the body is not valid JSON: {said}. Send one JSON object.") from error
    if not isinstance(fields, dict):
        raise invalid(f"the body is a JSON {_kind(fields)}, expected an object with fields. Send one JSON object.")
    known = _known(kind)
    given = {name: value for name, value in fields.items() if value is not None and not _neutral(name, value, known)}
    for items in (given.get("messages"), given.get("input")):  # clients send answers back, with their empty fields
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict):
                for name in [name for name, value in item.items() if value is None]:
                    del item[name]
    return converted(given, kind)


def converted(given: Mapping[str, object], kind: type[Body], strict: bool = True) -> Body:
    """Convert the fields of a request to `kind`; with `strict` false, from text. Raises `ApiError` as `decode`."""
    if strange := sorted(given.keys() - _known(kind)):
        raise unsupported(strange[0][:100])
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
def _known(kind: type[msgspec.Struct]) -> frozenset[str]:
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
    if strange := re.search(r"unknown field `(.*?)`", text):
        where = f"{where}.{strange.group(1)}" if where else strange.group(1)
        return unsupported(where[:200])
    plain = PATH.sub("", text).replace("`", "")
    return invalid(f"{where or 'the body'}: {plain[:1].lower()}{plain[1:]}.", where or None)


def _kind(value: Any) -> str:
    names = {list: "list", str: "string", int: "number", float: "number", bool: "boolean"}
    return names.get(type(value), "null")
