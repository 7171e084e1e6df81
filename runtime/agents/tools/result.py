"""The result of one call of a tool: a value with a text form, or an error on one line."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from intaglio.errors import IntaglioError, one_line
from intaglio.runtime.agents.run.observation import as_text

MOST_CHARACTERS = 1 << 22  # of a value as text, about
ERROR_CHARACTERS = 500
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>$")  # the text of an object that has none of its own, such as a generator


class ToolResult(NamedTuple):
    """The end of one call of a tool."""

    value: Any = None
    text: str = ""  # of the value
    error: str | None = None  # one line; then there is no value


def returned(value: Any) -> ToolResult:
    """The result of a tool that returned `value`: an error if no text can be made of it, or too much."""
    try:
        if problem := _problem(value):
            return ToolResult(error=problem)
        return ToolResult(value, as_text(value))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # of the value's own methods
        return ToolResult(error=f"the result cannot be written as text ({raised(error).error}). Return JSON values.")


def raised(error: BaseException) -> ToolResult:
    """The result of a tool that raised `error`, which may not even have a text."""
    try:
        message = one_line(error, ERROR_CHARACTERS)
    except (Exception, SystemExit, KeyboardInterrupt):
        message = "its message cannot be read"
    if isinstance(error, IntaglioError) and message:
        return ToolResult(error=message)
    return ToolResult(error=f"{type(error).__name__}: {message}" if message else type(error).__name__)


def _problem(value: Any) -> str | None:
    """Why `value` is not taken, found without making its text, which could take all memory or never end."""
    characters, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, str | bytes):
            characters += len(each)
        elif isinstance(each, dict | list | tuple):
            characters += 2 * len(each)
            if characters <= MOST_CHARACTERS:
                left.extend(each)
                left.extend(each.values() if isinstance(each, dict) else ())
        elif each is not None and not isinstance(each, int | float):
            text = str(each)
            characters += len(text)
            if _ADDRESS.search(text):
                return f"the result is or holds a {type(each).__name__}, which has no text. Return JSON values."
        if characters > MOST_CHARACTERS:
            return f"the result is larger than {MOST_CHARACTERS} characters, or holds itself. Return less."
    return None
