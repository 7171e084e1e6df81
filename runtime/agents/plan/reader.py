"""The text of a plan, read while it arrives: the parser's input, and the line for its messages."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import NoReturn

from intaglio.runtime.agents.plan.plan import PlanError

LINE = re.compile(r"[^\n]*")
SHOWN = 40  # characters of a plan in a message

Reading = Generator[None, None, str]  # stops where the text does, until there is more


def quoted(text: str) -> str:
    """The rest of a line as a message shows it."""
    text = text.strip()
    return f"{text[:SHOWN]!r}" if text else "the end of the line"


class PlanText:
    """Text in pieces. Reading from it is a generator that stops where a piece ends, until there is another one."""

    def __init__(self) -> None:
        self.line = 1
        self.ended = False  # whether the text is complete
        self._text, self._place = "", 0

    def append(self, text: str) -> None:
        """Append `text`, after all text before it was read."""
        self._text, self._place = text, 0

    def shown(self, before: str = "") -> Reading:
        """Return `before` and the rest of the line as a message shows them."""
        rest = yield from self.take(LINE, SHOWN)
        return quoted(f"{before}{rest}")

    def take(self, pattern: re.Pattern[str], limit: int | None = None) -> Reading:
        """Read the characters of `pattern`, which matches any number of them; at most `limit`."""
        parts, count = list[str](), 0
        while (limit is None or count < limit) and (yield from self.peek()):
            end = len(self._text) if limit is None else self._place + limit - count
            part = pattern.match(self._text, self._place, end)[0]  # type: ignore[index]  # it matches the empty text
            if not part:
                break
            self._place += len(part)
            self.line += part.count("\n")
            count += len(part)
            parts.append(part)
        return "".join(parts)

    def skip(self, char: str) -> Generator[None, None, bool]:
        """Read `char` if it comes next; return whether it did."""
        found = (yield from self.peek()) == char
        self._place += found
        return found

    def next_char(self) -> Reading:
        """Read any character."""
        char = yield from self.peek()
        self._place += len(char)
        self.line += char == "\n"
        return char

    def peek(self) -> Reading:
        """Return the next character; at the end of the text, the empty string."""
        while self._place == len(self._text) and not self.ended:
            yield
        return self._text[self._place : self._place + 1]

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        """Raise a `PlanError` for `line`, by default the one that is read."""
        raise PlanError(f"line {line or self.line}: {message}.")
