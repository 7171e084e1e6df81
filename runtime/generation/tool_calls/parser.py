"""Parse tool calls while the text streams."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from intaglio.runtime.generation.tool_calls.call_text import SPACE, CallText
from intaglio.runtime.generation.tool_calls.events import ToolEvent
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat


class ToolCallParser:
    """Splits the text of a model into content and tool calls.

    The events do not depend on how the text is cut into pieces, apart from how content and arguments are. Text that may
    be the beginning of a call is held back. What looks like a call but is not one in the syntax of the format is
    content, marker included. Whitespace before and between calls, and at the end, is dropped.
    """

    def __init__(self, style: ToolCallFormat, tools: Mapping[str, Mapping[str, Any]]):
        """`tools`: JSON schemas of the arguments by name; text without a marker is a call only if it calls one."""
        self._style = style
        self._text = CallText(tools, style.opening if style.bare else "", style.new_id)
        self._calling = False  # whether what is read may be a call
        self.cut_off = False  # whether the text ended within a call; known after `finish`
        self._reader = self._read()
        next(self._reader)

    def feed(self, text: str) -> list[ToolEvent]:
        """Add the next piece of the text; return what is certain."""
        for character in text:
            self._reader.send(character)
        return self._text.taken()

    def finish(self, cut: bool = False, following: str = "") -> list[ToolEvent]:
        """Return the rest at the end of the text: what was held back, if it is not part of a call.

        `cut`: the model did not end the text itself. What is held back is the beginning of a call then, and is dropped,
        unless `following`, the known next characters, shows that it is none.
        """
        rest = self._text.held.strip(SPACE)
        self.cut_off = self._text.open or (cut and self._begins_call(following))
        is_content = not self._text.started or (rest and not (self._style.closing or "").startswith(rest))
        if is_content and not self.cut_off:
            self._text.give_up()
        self._text.drop()
        return self._text.taken()

    def _begins_call(self, following: str) -> bool:
        """Whether what is held back begins a call, if the text continues with `following`."""
        held, opening = self._text.held.lstrip(SPACE), self._style.opening
        text = held + following
        return self._calling or (bool(held) and (opening.startswith(text) or text.startswith(opening)))

    def _read(self) -> Generator[None, str, None]:
        if self._style.bare:
            first = yield from self._text.next_visible()
            self._text.unread()
            if first == self._style.first:
                yield from self._calls()
        while True:
            yield from self._content()
            yield from self._calls()

    def _content(self) -> Generator[None, str, None]:
        """Report content up to the marker of a call; hold back what may be whitespace before it, and its beginning."""
        text, opening = self._text, self._style.opening
        blank = self._blank()
        while not text.held.endswith(opening):
            character = yield from text.next()
            if character in SPACE and blank == len(text.held) - 1:
                blank += 1
            elif not opening.startswith(text.held[blank:]):
                places = range(blank + 1, len(text.held) + 1)
                start = next(place for place in places if opening.startswith(text.held[place:].lstrip(SPACE)))
                text.give_up(start)
                blank = self._blank()

    def _blank(self) -> int:
        """Return the length of the whitespace at the beginning of what is held back."""
        return len(self._text.held) - len(self._text.held.lstrip(SPACE))

    def _calls(self) -> Generator[None, str, None]:
        """Read the calls after a marker, or at the beginning of the text."""
        text, before, closed = self._text, self._text.started, False
        self._calling = True
        if (yield from text.next_visible()) != "[":
            text.unread()
        while not closed and (yield from self._style.syntax.read(text)):
            self._calling = False
            while (yield from text.next_visible()) in ",;]":
                text.drop()
            text.unread()
            closed = self._style.closing is not None and (yield from text.literal(self._style.closing))
            self._calling = not closed
        self._calling = False
        if closed:
            text.drop()
        elif text.started == before:
            text.give_up()
