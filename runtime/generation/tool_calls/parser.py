"""Parse tool calls while the text streams."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator
from dataclasses import dataclass

from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

SPACE = " \t\r\n"
ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Text that is not part of a call, at least one character."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call begins: its arguments follow."""

    index: int  # 0, 1, ... in the text
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """The next characters of the arguments of a call: JSON text of an object, as the model writes it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is complete. A call without this event was cut off by the end of the text."""

    index: int


ToolEvent = ContentPiece | CallStarted | ArgumentsPiece | CallEnded
Characters = Generator[None, str, str]  # reads characters, and returns the last one or what it read
Calls = Generator[None, str, bool]


class ToolCallParser:
    """Splits the text of a model into content and tool calls.

    The events do not depend on how the text is cut into pieces, apart from how content and arguments are. Text that may
    be the beginning of a call is held back. What looks like a call but is not a JSON object with a name and arguments
    is content, marker included. Whitespace before and between calls, and at the end, is dropped.
    """

    def __init__(self, style: ToolCallFormat, tools: Collection[str] = ()):
        """`tools`: names of the tools; text without a marker is a call only if it calls one of them."""
        self._style, self._tools = style, tools
        self._events: list[ToolEvent] = []
        self._held = ""  # characters that are content, unless they are part of a call
        self._again = ""  # the next character, if it was read already
        self._started = 0  # number of calls that were reported
        self._open = False  # whether the last of them is not complete
        self.cut_off = False  # whether the text ended within a call; known after `finish`
        self._reader = self._read()
        next(self._reader)

    def feed(self, text: str) -> list[ToolEvent]:
        """Add the next piece of the text; return what is certain."""
        for character in text:
            self._reader.send(character)
        return self._taken()

    def finish(self, cut: bool = False, following: str = "") -> list[ToolEvent]:
        """Return the rest at the end of the text: what was held back, if it is not part of a call.

        `cut`: the model did not end the text itself. What is held back is the beginning of a call then, and is dropped,
        unless `following`, the known next characters, shows that it is none.
        """
        rest = self._held.strip(SPACE)
        self.cut_off = self._open or (cut and self._begins_call(following))
        is_content = not self._started or (rest and not (self._style.closing or "").startswith(rest))
        if is_content and not self.cut_off:
            self._give_up()
        self._held = ""
        return self._taken()

    def _begins_call(self, following: str) -> bool:
        """Whether what is held back begins a call, if the text continues with `following`.

        Content before a marker never has a brace held back.
        """
        held, opening = self._held.lstrip(SPACE), self._style.opening
        if held.startswith(("{", opening)):
            return True
        text = held + following
        return bool(held) and (opening.startswith(text) or text.startswith(opening))

    def _taken(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events

    def _report(self, event: ToolEvent) -> None:
        """Add an event, and join pieces of the same text."""
        last = self._events[-1] if self._events else None
        if isinstance(event, ContentPiece) and isinstance(last, ContentPiece):
            event = ContentPiece(last.text + event.text)
        elif isinstance(event, ArgumentsPiece) and isinstance(last, ArgumentsPiece) and last.index == event.index:
            event = ArgumentsPiece(event.index, last.text + event.text)
        else:
            self._events.append(event)
            return
        self._events[-1] = event

    def _give_up(self) -> None:
        """Report what was held back as content."""
        if self._held:
            self._report(ContentPiece(self._held))
        self._held = ""

    def _next(self) -> Characters:
        """Read a character, and hold it back."""
        character = self._again or (yield)
        self._again = ""
        self._held += character
        return character

    def _unread(self) -> None:
        """Put the last character back."""
        self._held, self._again = self._held[:-1], self._held[-1]

    def _next_visible(self) -> Characters:
        """Read a character that is not whitespace."""
        while (character := (yield from self._next())) in SPACE:
            pass
        return character

    def _read(self) -> Generator[None, str, None]:
        if self._style.bare and (yield from self._next_visible()) == "{":
            yield from self._calls("{")
        elif self._style.bare:
            self._unread()
        while True:
            yield from self._content()
            yield from self._calls((yield from self._next_visible()))

    def _content(self) -> Generator[None, str, None]:
        """Report content up to the marker of a call; hold back what may be whitespace before it, and its beginning."""
        opening = self._style.opening
        blank = self._blank()
        while not self._held.endswith(opening):
            character = yield from self._next()
            if character in SPACE and blank == len(self._held) - 1:
                blank += 1
            elif not opening.startswith(self._held[blank:]):
                places = range(blank + 1, len(self._held) + 1)
                start = next(place for place in places if opening.startswith(self._held[place:].lstrip(SPACE)))
                self._report(ContentPiece(self._held[:start]))
                self._held = self._held[start:]
                blank = self._blank()

    def _blank(self) -> int:
        """Return the length of the whitespace at the beginning of what is held back."""
        return len(self._held) - len(self._held.lstrip(SPACE))

    def _calls(self, character: str) -> Generator[None, str, None]:
        """Read the calls after a marker, or at the beginning of the text, from their first `character` on."""
        before = self._started
        if character == "[":
            character = yield from self._next_visible()
        while character == "{" and (yield from self._call()):
            character = yield from self._next_visible()
            while character in ",;]":
                self._held = ""
                character = yield from self._next_visible()
        if self._started > before and (yield from self._closes(character)):
            self._held = ""
            return
        self._unread()
        if self._started == before:
            self._give_up()

    def _closes(self, character: str) -> Calls:
        """Read the marker after a call, from its first `character` on; return whether it is one."""
        closing = self._style.closing
        if closing is None or character != closing[0]:
            return False
        for expected in closing[1:]:
            if (yield from self._next()) != expected:
                return False
        return True

    def _call(self) -> Calls:
        """Read the object of a call after its brace; return whether it is one."""
        name: str | None = None
        early = ""  # arguments that come before the name
        index = self._started
        while (key := (yield from self._key())) is not None:
            character = yield from self._next_visible()
            if key == "name" and character == '"' and name is None:
                name = yield from self._string()
                if early and self._starts(name):
                    self._report(ArgumentsPiece(index, early))
            elif key in ARGUMENTS and character == "{" and self._started == index and not early:
                if name is None:
                    early = yield from self._value("{")
                elif self._starts(name):
                    yield from self._value("{", index)
                else:
                    return False
            elif key in ("name", *ARGUMENTS):
                break
            else:
                yield from self._value(character)
            if (yield from self._next_visible()) != ",":
                break
        return self._ends(index)

    def _key(self) -> Generator[None, str, str | None]:
        """Read a key of an object and the colon after it; return None for something else."""
        if (yield from self._next_visible()) != '"':
            return None
        key = yield from self._string()
        return key if (yield from self._next_visible()) == ":" else None

    def _starts(self, name: str) -> bool:
        """Report that a call starts, unless it is text without a marker that names no tool."""
        marked = not self._style.bare or self._held.lstrip(SPACE).startswith(self._style.opening)
        if not marked and name not in self._tools:
            return False
        self._report(CallStarted(self._started, self._style.new_id(), name))
        self._started += 1
        self._open, self._held = True, ""
        return True

    def _ends(self, index: int) -> bool:
        """Report that the call of this number ends, if it started; what is not its closing brace comes after it."""
        if self._started == index:
            return False
        self._report(CallEnded(index))
        if not self._held.endswith("}"):
            self._unread()
        self._open, self._held = False, ""
        return True

    def _string(self) -> Characters:
        """Read the rest of a JSON string and return its value; an invalid string is returned unchanged."""
        text = '"'
        while True:
            text += yield from self._next()
            if text[-1] == "\\":
                text += yield from self._next()
            elif text[-1] == '"':
                break
        try:
            value = str(json.loads(text, strict=False))
        except ValueError:
            return text
        return value.encode("utf-8", "replace").decode()  # a lone surrogate is not a character

    def _value(self, character: str, index: int | None = None) -> Characters:
        """Read a JSON value from its first `character` on; report its text as arguments of a call, or return it."""
        read, depth, quoted, escaped = "", 0, False, False
        while True:
            read += character
            if index is not None:
                self._report(ArgumentsPiece(index, character))
                read = self._held = ""
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
            character = yield from self._next()
            if not quoted and depth == 0 and character in ",}":
                self._unread()
                return read
