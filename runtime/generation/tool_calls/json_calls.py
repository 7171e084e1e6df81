"""Calls that are JSON objects: {"name": "weather", "arguments": {"city": "Ulm"}}."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass

from intaglio.runtime.generation.tool_calls.call_text import CallText, Characters, Found

ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True)
class JsonCalls:
    """The syntax of calls that are JSON objects with a name and arguments, which are streamed as the model writes them.

    Other keys, and another order of them, are read, too.
    """

    key: str = "arguments"  # of the arguments, as the model was trained to write it
    notation = None  # arguments are JSON

    def frame(self, name: str) -> tuple[str, str]:
        """See `CallSyntax`."""
        return f'{{"name": {json.dumps(name)}, {json.dumps(self.key)}: ', "}"

    def read(self, text: CallText) -> Found:
        """See `CallSyntax`."""
        found = (yield from text.next_visible()) == "{" and (yield from self._members(text))
        if found and text.held.endswith("}"):
            text.end()
        elif found:  # what is not the closing brace comes after the call
            text.unread()
            text.end()
        else:
            text.unread()
        return found

    def _members(self, text: CallText) -> Found:
        """Read the object of a call after its brace; return whether a call started."""
        name: str | None = None
        early = ""  # arguments that come before the name
        started = False
        while (key := (yield from _key(text))) is not None:
            character = yield from text.next_visible()
            if key == "name" and character == '"' and name is None:
                name = yield from _string(text)
                if early and (started := text.start(name)):
                    text.arguments(early)
            elif key in ARGUMENTS and character == "{" and not started and not early:
                if name is None:
                    early = yield from _value(text, "{")
                elif started := text.start(name):
                    yield from _value(text, "{", report=True)
                else:
                    return False
            elif key in ("name", *ARGUMENTS):
                break
            else:
                yield from _value(text, character)
            if (yield from text.next_visible()) != ",":
                break
        return started


def _key(text: CallText) -> Generator[None, str, str | None]:
    """Read a key of an object and the colon after it; return None for something else."""
    if (yield from text.next_visible()) != '"':
        return None
    key = yield from _string(text)
    return key if (yield from text.next_visible()) == ":" else None


def _string(text: CallText) -> Characters:
    """Read the rest of a JSON string and return its value; an invalid string is returned unchanged."""
    read = '"'
    while True:
        read += yield from text.next()
        if read[-1] == "\\":
            read += yield from text.next()
        elif read[-1] == '"':
            break
    try:
        value = str(json.loads(read, strict=False))
    except ValueError:
        return read
    return value.encode("utf-8", "replace").decode()  # a lone surrogate is not a character


def _value(text: CallText, character: str, report: bool = False) -> Characters:
    """Read a JSON value from its first `character` on; report it as arguments of the open call, or return it."""
    read, depth, quoted, escaped = "", 0, False, False
    while True:
        read += character
        if report:
            text.arguments(character)
            read = ""
        if escaped:
            escaped = False
        elif character == '"':
            quoted = not quoted
        elif quoted:
            escaped = character == "\\"
        else:
            depth += (character in "{[") - (character in "}]")
        if not quoted and depth <= 0 and character in '"}]':
            return read
        character = yield from text.next()
        if not quoted and depth == 0 and character in ",}":
            text.unread()
            return read
