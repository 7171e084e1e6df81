"""How a plan writes values: decoding its strings, and writing calls."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from intaglio.runtime.agents.plan.plan import Call, PlanError, Reference, Template, Value

# Inside a string: a surrogate pair, another escape, or a dollar sign. Anything else is text.
SPECIAL = re.compile(
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\(?:u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8})|x(?P<two>[0-9a-fA-F]{2})|(?P<one>[^uUx]))"
    r"|\$(?P<dollar>\$)|\$(?P<bare>[0-9]+)|\$\{(?P<braced>[0-9]+)\}",
    re.DOTALL,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""} | {char: char for char in "\\/\"'$"}
FIELD = re.compile(r"\.\w|\[[\w\"'-]")  # after a reference: a part of the result, or a number such as $1.50
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
MAX_NUMBER = 10**9  # of a call


def reference_of(digits: str) -> Reference:
    """Return the reference with these digits. Raises `PlanError` for one that no call can have."""
    if len(digits) > len(str(MAX_NUMBER)) or not 0 < int(digits) < MAX_NUMBER:
        raise PlanError(f"${digits[:20]} refers to no call, expected a number from 1. Write $$ for a dollar sign.")
    return Reference(int(digits))


def decoded(body: str) -> Value:
    """Return the value of a string from what is between its quotes: a str, a `Reference` or a `Template`.

    Escapes follow JSON and Python; a backslash before anything else stays, and so does a dollar sign that is
    neither a reference nor doubled. Raises `PlanError` for control characters, halves of surrogate pairs, references
    that no call can have, and for parts of results, such as "$1.name".
    """
    parts: list[str | Reference] = []
    text, place = list[str](), 0
    for match in SPECIAL.finditer(body):
        text.append(_plain(body[place : match.start()]))
        place = match.end()
        if digits := match["bare"] or match["braced"]:
            if match["bare"] and (field := FIELD.match(body, place)):
                reference_of(digits)
                raise PlanError(
                    f"${digits}{field[0]} is no reference, as results have no parts here. Write ${digits} for all of "
                    f"it, ${{{digits}}}{field[0]} for text behind it, or $$ for a dollar sign."
                )
            parts += ["".join(text), reference_of(digits)]
            text = []
        else:
            text.append(match["dollar"] or _unescaped(match))
    parts.append("".join([*text, _plain(body[place:])]))
    parts = [part for part in parts if part != ""]
    if len(parts) > 1:
        return Template(tuple(parts))
    return parts[0] if parts else ""


def decoded_key(body: str) -> str:
    """Return the key of an object from what is between its quotes, in which a dollar sign is text."""
    key = decoded(body.replace("$", "$$"))
    assert isinstance(key, str)
    return key


def _plain(text: str) -> str:
    if match := FORBIDDEN.search(text):
        code = ord(match[0])
        raise PlanError(
            f"a string has the character U+{code:04X}, expected text. Write \\u{code:04x}, or leave it out."
        )
    return text


def _unescaped(match: re.Match[str]) -> str:
    if match["one"]:
        return ESCAPES.get(match["one"], match[0])
    if match["high"]:
        return bytes.fromhex(match["high"] + match["low"]).decode("utf-16-be")
    code = int(match["four"] or match["eight"] or match["two"], 16)
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise PlanError(f"a string has the escape {match[0]}, expected a character. Leave it out.")
    return chr(code)


def rendered(call: Call) -> str:
    """Return `call` as a plan has it, on one line: `3. search("age of $1", limit=2)`."""
    arguments = [
        *map(rendered_value, call.arguments),
        *(f"{name}={rendered_value(value)}" for name, value in call.keywords.items()),
    ]
    return f"{call.number}. {call.tool}({', '.join(arguments)})"


def rendered_plan(calls: Sequence[Call]) -> str:
    """Return a plan: its calls with their thoughts, and join()."""
    lines = [line for call in calls for line in (*_thoughts(call), rendered(call))]
    return "\n".join([*lines, f"{max((call.number for call in calls), default=0) + 1}. join()"])


def _thoughts(call: Call) -> list[str]:
    return [f"Thought: {line}" for line in (call.thought or "").split("\n") if line]


def rendered_value(value: Value) -> str:
    """Return a value as an argument of a plan has it."""
    match value:
        case Reference(number):
            return f"${number}"
        case Template(parts):
            return f'"{"".join(_part(part, after) for part, after in zip(parts, (*parts[1:], ""), strict=True))}"'
        case dict():
            return f"{{{', '.join(f'{_json(key)}: {rendered_value(each)}' for key, each in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(rendered_value, value))}]"
    return _json(value).replace("$", "$$")


def _part(part: str | Reference, after: str | Reference) -> str:
    if isinstance(part, str):
        return _json(part)[1:-1].replace("$", "$$")
    runs_on = isinstance(after, str) and after[:1] in set("0123456789.[")
    return f"${{{part.number}}}" if runs_on else f"${part.number}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
