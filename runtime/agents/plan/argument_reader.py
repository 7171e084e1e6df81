"""Reading the arguments of a call while they arrive: values, and names before them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator
from typing import NoReturn

from intaglio.runtime.agents.plan.plan import MAX_DEPTH, PlanError, Value
from intaglio.runtime.agents.plan.reader import SHOWN, PlanText
from intaglio.runtime.agents.plan.surrounding_text import BLANK
from intaglio.runtime.agents.plan.text import decoded, decoded_key, reference_of

SPACES = re.compile(rf"(?:{BLANK}|\n)*")
DIGITS = re.compile(r"[0-9]*")
WORD = re.compile(r"[\w.+-]*")  # a keyword, a number, true
# What opens a string, and what may close it: German, French and Asian quotation marks have closing ones of their own.
QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“”", "‘": "’", "‚": "‘’", "«": "»", "»": "«", "「": "」"}
BODIES = {opening: re.compile(rf"[^\\{closing}]*") for opening, closing in QUOTES.items()}  # up to an escape or the end
KEYWORD = re.compile(r"[^\W\d][\w.-]*")
INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
MAX_DIGITS = 400  # of an integer; Python converts up to 4300

Arguments = tuple[list[Value], dict[str, Value]]  # by their places, and by name


# Not Python's `ast`: the end of a call is known only once its strings are read, and their quotes and escapes differ.
class ArgumentReader:
    """Reads from `text`; `place`, such as "call 1, search", begins the messages. Every error is a `PlanError`."""

    def __init__(self, text: PlanText, place: str):
        self._text, self._place = text, place

    def arguments(self) -> Generator[None, None, Arguments]:
        """Read the arguments and the closing parenthesis."""
        arguments, keywords, line = list[Value](), dict[str, Value](), self._text.line
        while not (yield from self._closed(")", line)):
            word = yield from self._text.take(WORD)
            yield from self._text.take(SPACES)
            if KEYWORD.fullmatch(word) and (yield from self._assigned()):
                yield from self._named(keywords, word)
            else:
                quoted = not word and (yield from self._text.peek()) in QUOTES
                value = yield from self._value(word, 1)
                yield from self._text.take(SPACES)
                if quoted and isinstance(value, str) and (yield from self._assigned()):
                    yield from self._named(keywords, value)
                elif keywords:
                    after = next(reversed(keywords))
                    self._fail(f"an argument without a name after {after[:SHOWN]}=, expected name=value")
                else:
                    arguments.append(value)
            yield from self._separated(")", line)
        return arguments, keywords

    def _assigned(self) -> Generator[None, None, bool]:
        """Skip what is between a name and its value; return whether it was there."""
        return (yield from self._text.skip("=")) or (yield from self._text.skip(":"))

    def _named(self, keywords: dict[str, Value], name: str) -> Generator[None, None, None]:
        if name in keywords:
            self._fail(f"the argument {name[:SHOWN]} is given twice")
        yield from self._text.take(SPACES)
        keywords[name] = yield from self._value((yield from self._text.take(WORD)), 1)

    def _value(self, word: str, depth: int) -> Generator[None, None, Value]:
        """Read a value, of which `word` has been read."""
        if word:
            return self._literal(word)
        if depth > MAX_DEPTH:
            self._fail(f"lists and objects are nested more than {MAX_DEPTH} deep")
        char = yield from self._text.peek()
        if char in QUOTES:
            return (yield from self._string(decoded))
        if char == "$":
            return (yield from self._reference())
        if char == "[":
            return (yield from self._list(depth))
        if char == "{":
            return (yield from self._object(depth))
        if not char:
            self._incomplete()
        self._fail(f"got {(yield from self._text.shown())}, expected a value")

    def _literal(self, word: str) -> Value:
        if word in CONSTANTS:
            return CONSTANTS[word]
        if INTEGER.fullmatch(word):
            if len(word) > MAX_DIGITS:
                self._fail(f"an integer of {len(word)} digits, expected at most {MAX_DIGITS}")
            return int(word)
        if not NUMBER.fullmatch(word):
            self._fail(f"got {word[:SHOWN]}, expected a value. Write text in quotes, and a result as $1")
        if not math.isfinite(number := float(word)):
            self._fail(f"the number {word[:SHOWN]} is too large")
        return number

    def _reference(self) -> Generator[None, None, Value]:
        yield from self._text.skip("$")
        braced = yield from self._text.skip("{")
        digits = yield from self._text.take(DIGITS, SHOWN)
        if not digits or (braced and not (yield from self._text.skip("}"))):
            shown = yield from self._text.shown(f"${'{' * braced}{digits}")
            self._fail(f"got {shown}, expected a reference such as $1. Write other text in quotes")
        return self._checked(lambda: reference_of(digits), self._text.line)

    def _list(self, depth: int) -> Generator[None, None, Value]:
        values, line = list[Value](), self._text.line
        yield from self._text.skip("[")
        while not (yield from self._closed("]", line)):
            values.append((yield from self._value((yield from self._text.take(WORD)), depth + 1)))
            yield from self._separated("]", line)
        return values

    def _object(self, depth: int) -> Generator[None, None, Value]:
        values, line = dict[str, Value](), self._text.line
        yield from self._text.skip("{")
        while not (yield from self._closed("}", line)):
            if (yield from self._text.peek()) not in QUOTES:
                self._fail(f"got {(yield from self._text.shown())}, expected the key of an object in quotes")
            key = yield from self._string(decoded_key)
            yield from self._text.take(SPACES)
            if not (yield from self._text.skip(":")):
                self._fail(f"got {(yield from self._text.shown())} after the key {key[:SHOWN]!r}, expected a colon")
            yield from self._text.take(SPACES)
            values[key] = yield from self._value((yield from self._text.take(WORD)), depth + 1)
            yield from self._separated("}", line)
        return values

    def _closed(self, bracket: str, line: int) -> Generator[None, None, bool]:
        """Skip spaces, and `bracket` if it comes next; return whether it did."""
        yield from self._text.take(SPACES)
        if not (yield from self._text.peek()):
            self._incomplete(bracket, line)
        return (yield from self._text.skip(bracket))

    def _separated(self, bracket: str, line: int) -> Generator[None, None, None]:
        """Skip a comma; `bracket` may come instead."""
        yield from self._text.take(SPACES)
        char = yield from self._text.peek()
        if not char:
            self._incomplete(bracket, line)
        if char != bracket and not (yield from self._text.skip(",")):
            self._fail(f"got {(yield from self._text.shown())} after a value, expected a comma or {bracket}")

    def _string(self, decode: Callable[[str], Value]) -> Generator[None, None, Value]:
        """Read a string and return the value that `decode` gives for what is between its quotes."""
        line = self._text.line
        opening = yield from self._text.next_char()
        if opening in "\"'" and (yield from self._text.skip(opening)):
            if not (yield from self._text.skip(opening)):
                return ""
            return (yield from self._long_string(opening, line, decode))
        closing, parts = QUOTES[opening], list[str]()
        while True:
            parts.append((yield from self._text.take(BODIES[opening])))
            char = yield from self._text.next_char()
            if char and char in closing:
                return self._checked(lambda: decode("".join(parts)), line)
            parts.append(char)
            if char == "\\":
                parts.append((yield from self._text.next_char()))
            if not (yield from self._text.peek()):
                self._incomplete(closing[-1], line)

    def _long_string(self, quote: str, line: int, decode: Callable[[str], Value]) -> Generator[None, None, Value]:
        """Read the rest of a string between three quotes, as Python has it."""
        parts, closing = list[str](), 0  # quotes at the end of `parts`
        while closing < 3:
            parts.append((yield from self._text.take(BODIES[quote])))
            char = yield from self._text.next_char()
            if not char:
                self._incomplete(3 * quote, line)
            closing = closing + 1 if char == quote and not parts[-1] else int(char == quote)
            parts.append(char)
            if char == "\\":
                parts.append((yield from self._text.next_char()))
        return self._checked(lambda: decode("".join(parts)[:-3]), line)

    def _checked(self, make: Callable[[], Value], line: int) -> Value:
        """Return what `make` returns; a `PlanError` of it gets the line and the place."""
        try:
            return make()
        except PlanError as error:
            self._fail(str(error).removesuffix("."), line)

    def _fail(self, message: str, line: int | None = None) -> NoReturn:
        self._text.fail(f"{self._place}: {message}", line)

    def _incomplete(self, missing: str = ")", line: int | None = None) -> NoReturn:
        self._fail(f"the plan ends before the closing {missing}", line)
