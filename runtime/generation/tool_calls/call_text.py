"""The text of a model as the syntax of a call reads it: one character after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import Any

from intaglio.runtime.generation.tool_calls.events import (
    ArgumentsPiece,
    CallEnded,
    CallStarted,
    ContentPiece,
    ToolEvent,
)

SPACE = " \t\r\n"
Characters = Generator[None, str, str]  # reads characters, and returns the last one or what it read
Found = Generator[None, str, bool]  # reads characters, and returns whether they are what was looked for


class CallText:
    """Characters that are held back until it is certain what they are, and the events of those before them."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]], marker: str, new_id: Callable[[], str]):
        """`tools`: JSON schemas of the arguments, by name; `marker`: only text after it calls other tools."""
        self.tools = tools
        self._marker, self._new_id = marker, new_id
        self._events: list[ToolEvent] = []
        self._arguments = ""  # of the open call, to be reported
        self._again = ""  # the next characters, if they were read already
        self.held = ""  # characters that are content, unless they are part of a call
        self.started = 0  # number of calls that were reported
        self.open = False  # whether the last of them is not complete

    def next(self) -> Characters:
        """Read a character, and hold it back."""
        if self._again:
            character, self._again = self._again[0], self._again[1:]
        else:
            character = yield
        self.held += character
        return character

    def next_visible(self) -> Characters:
        """Read a character that is not whitespace."""
        while (character := (yield from self.next())) in SPACE:
            pass
        return character

    def literal(self, expected: str) -> Found:
        """Read `expected`; put back what is something else."""
        for count, each in enumerate(expected, 1):
            if (yield from self.next()) != each:
                self.unread(count)
                return False
        return True

    def word(self, allowed: re.Pattern[str]) -> Characters:
        """Read characters as long as each is `allowed`."""
        found = ""
        while allowed.match(character := (yield from self.next())):
            found += character
        self.unread()
        return found

    def unread(self, count: int = 1) -> None:
        """Put the last characters back."""
        kept = len(self.held) - count  # not a negative index: count may be 0
        self.held, self._again = self.held[:kept], self.held[kept:] + self._again

    def drop(self) -> None:
        """Forget what is held back: it is markup, or was reported."""
        self.held = ""

    def start(self, name: str) -> bool:
        """Report that a call starts, unless it is text without a marker that names no tool."""
        if name not in self.tools and not self.held.lstrip(SPACE).startswith(self._marker):
            return False
        self._report(CallStarted(self.started, self._new_id(), name))
        self.started += 1
        self.open = True
        self.drop()
        return True

    def arguments(self, text: str) -> None:
        """Report the next characters of the arguments, JSON text, of the call that is open."""
        self._arguments += text
        self.drop()

    def end(self) -> None:
        """Report that the open call is complete."""
        self._report(CallEnded(self.started - 1))
        self.open = False
        self.drop()

    def give_up(self, count: int | None = None) -> None:
        """Report the first `count` characters of what is held back as content; None: all of it."""
        text, self.held = self.held[:count], "" if count is None else self.held[count:]
        if text and self._events and isinstance(last := self._events[-1], ContentPiece):
            self._events[-1] = ContentPiece(last.text + text)
        elif text:
            self._report(ContentPiece(text))

    def taken(self) -> list[ToolEvent]:
        """Return the events since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _report(self, event: ToolEvent) -> None:
        self._flush()
        self._events.append(event)

    def _flush(self) -> None:
        if self._arguments:
            self._events.append(ArgumentsPiece(self.started - 1, self._arguments))
        self._arguments = ""
