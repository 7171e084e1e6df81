"""Writes a call as a plan has it, on one line."""

from __future__ import annotations

import json

from intaglio.runtime.agents.plan import Call, Reference, Template, Value

_JSON = json.JSONEncoder(ensure_ascii=False)


def call_text(call: Call) -> str:
    """Return `search("age of $1", limit=2)`: without its number, and without the thought before it."""
    keywords = (f"{name}={_literal(value)}" for name, value in call.keywords.items())
    return f"{call.tool}({', '.join([*map(_literal, call.arguments), *keywords])})"


def _literal(value: Value) -> str:
    match value:
        case Reference(number):
            return f"${number}"
        case Template(parts):
            return _JSON.encode("".join(map(_part, parts)))
        case str():
            return _JSON.encode(_part(value))
        case dict():
            pairs = (f"{_JSON.encode(key)}: {_literal(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_literal, value))}]"
    return _JSON.encode(value)


def _part(part: str | Reference) -> str:
    """A part of a string: `${1}`, as a digit may follow, or text whose `$` are doubled."""
    return f"${{{part.number}}}" if isinstance(part, Reference) else part.replace("$", "$$")
