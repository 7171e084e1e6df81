"""Reading a plan while a model writes it. The language is described in docs/plan_language.md."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Generator, Mapping
from typing import NoReturn

from intaglio.runtime.agents.plan import ENDINGS, MAX_DEPTH, Call, Join, PlanError, Value
from intaglio.runtime.agents.plan_check import check_call, check_names
from intaglio.runtime.agents.plan_reader import LINE, SHOWN, PlanText
from intaglio.runtime.agents.plan_text import MAX_NUMBER, decoded, decoded_key, reference_of
from intaglio.runtime.agents.tool import Tool

BLANKS = re.compile(r"[ \t\r]*")
SPACES = re.compile(r"[ \t\r\n]*")
DIGITS = re.compile(r"[0-9]*")
WORD = re.compile(r"[\w.+-]*")  # a tool, a keyword, a number, true
BODIES = {quote: re.compile(rf"[^\\{quote}]*") for quote in "\"'"}  # of a string, up to its end or an escape
KEYWORD = re.compile(r"[^\W\d][\w.-]*")
INTEGER = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
MAX_DIGITS = 400  # of an integer; Python converts up to 4300


class PlanParser:
    """Reads a plan piece by piece.

    A call is complete at its closing parenthesis. The calls, and the error, do not depend on where the text is cut: an
    error behind calls that the same piece completes is raised by the next `push` or by `finish`.
    """

    def __init__(self, tools: Mapping[str, Tool], known: Collection[int] = ()):
        """`known`: the numbers of earlier calls, which this plan may refer to and goes on from.

        Raises `UsageError` for a tool with the name of a plan's ending.
        """
        check_names(tools)
        self._tools = tools
        self._numbers = sorted(known)  # of earlier calls, and of those of this plan
        self._text = PlanText()
        self._calls: list[Call] = []
        self._error: PlanError | None = None
        self._thoughts: list[str] = []
        self._reading = self._plan()
        self.join: Join | None = None  # set by join()

    def push(self, text: str) -> list[Call]:
        """Read `text` and return the calls that it completes. Raises `PlanError` for what is not a plan."""
        joined = self.join
        if self._error is None:
            self._text.append(text)
            try:
                next(self._reading, None)
            except PlanError as error:
                self._error = error
        calls, self._calls = self._calls, []
        if self._error and not calls and self.join is joined:
            raise self._error
        return calls

    def finish(self) -> list[Call]:
        """Read the end of the text. Raises `PlanError` for an incomplete call, and for a plan without calls and join.

        The list is empty, as a call is complete before the end.
        """
        self._text.ended = True
        return self.push("")

    def _plan(self) -> Generator[None, None, None]:
        first = len(self._numbers)
        while True:
            yield from self._text.take(SPACES)
            char = yield from self._text.peek()
            if self.join and char:
                self._text.fail(
                    f"text after the end of the plan: {(yield from self._text.shown())}. Write nothing after it"
                )
            if not char:
                break
            if char == "$" or char in "0123456789":
                yield from self._call()
            else:
                yield from self._thought()
        if len(self._numbers) == first and self.join is None:
            self._text.fail("the plan has no call. Write calls such as 1. tool(arguments), and join() at the end")

    def _thought(self) -> Generator[None, None, None]:
        word = yield from self._text.take(WORD, SHOWN)
        blanks = yield from self._text.take(BLANKS)
        if word.lower() != "thought" or not (yield from self._text.skip(":")):
            shown = yield from self._text.shown(word + blanks)
            self._text.fail(f"got {shown}, expected a line such as Thought: text, or 1. tool(arguments)")
        self._thoughts.append((yield from self._text.take(LINE)).strip())

    def _call(self) -> Generator[None, None, None]:
        line = self._text.line
        dollar = "$" * (yield from self._text.skip("$"))
        digits = yield from self._text.take(DIGITS, SHOWN)
        blanks = yield from self._text.take(BLANKS)
        if not digits or not (yield from self._text.skip("=" if dollar else ".")):
            shown = yield from self._text.shown(f"{dollar}{digits}{blanks}")
            self._text.fail(f"got {shown}, expected a call such as 1. tool(arguments) or $1 = tool(arguments)")
        number = self._numbered(digits)
        yield from self._text.take(BLANKS)
        name = yield from self._text.take(WORD, 2 * SHOWN)
        blanks = yield from self._text.take(BLANKS)
        if not name or not (yield from self._text.skip("(")):
            shown = yield from self._text.shown(name + blanks)
            self._text.fail(f"got {shown} after the number {number}, expected the name of a tool and a parenthesis")
        if name not in self._tools and name not in ENDINGS:
            known = ", ".join([*self._tools, "join"])
            self._text.fail(f"no tool is named {name[:64]!r}, expected one of {known}")
        arguments, keywords = yield from self._arguments(f"call {number}, {name}")
        thought = "\n".join(self._thoughts) or None
        self._thoughts = []
        if name in ENDINGS:
            if arguments or keywords:
                self._text.fail(f"{name}() takes no arguments", line)
            self.join = Join(thought)
        else:
            call = Call(number, name, tuple(arguments), keywords, thought)
            self._checked(lambda: check_call(call, self._tools[name], self._numbers), line)
            self._calls.append(call)
            self._numbers.append(number)
        yield from self._text.take(BLANKS)
        if (yield from self._text.peek()) not in ("", "\n"):
            self._text.fail(f"got {(yield from self._text.shown())} after call {number}, expected the end of the line")

    def _numbered(self, digits: str) -> int:
        number = int(digits) if len(digits) < len(str(MAX_NUMBER)) else 0
        least = self._numbers[-1] + 1 if self._numbers else 1
        if number in self._numbers:
            self._text.fail(f"the number {number} is taken, expected {least}. Number the calls in order")
        if number < least:
            self._text.fail(f"call number {digits[:SHOWN]}, expected {least}. Number the calls in order")
        return number

    def _arguments(self, place: str) -> Generator[None, None, tuple[list[Value], dict[str, Value]]]:
        """Read the arguments and the closing parenthesis."""
        arguments, keywords, line = list[Value](), dict[str, Value](), self._text.line
        while not (yield from self._closed(")", place, line)):
            word = yield from self._text.take(WORD)
            yield from self._text.take(SPACES)
            if KEYWORD.fullmatch(word) and (yield from self._text.skip("=")):
                if word in keywords:
                    self._text.fail(f"{place}: the argument {word} is given twice")
                yield from self._text.take(SPACES)
                keywords[word] = yield from self._value((yield from self._text.take(WORD)), place, 1)
            elif keywords:
                self._text.fail(
                    f"{place}: an argument without a name after {next(reversed(keywords))}=, expected name=value"
                )
            else:
                arguments.append((yield from self._value(word, place, 1)))
            yield from self._separated(")", place, line)
        return arguments, keywords

    def _value(self, word: str, place: str, depth: int) -> Generator[None, None, Value]:
        """Read a value, of which `word` has been read."""
        if word:
            return self._literal(word, place)
        if depth > MAX_DEPTH:
            self._text.fail(f"{place}: lists and objects are nested more than {MAX_DEPTH} deep")
        char = yield from self._text.peek()
        if char in BODIES:
            return (yield from self._string(place, decoded))
        if char == "$":
            return (yield from self._reference(place))
        if char == "[":
            return (yield from self._list(place, depth))
        if char == "{":
            return (yield from self._object(place, depth))
        if not char:
            self._incomplete(place)
        self._text.fail(f"{place}: got {(yield from self._text.shown())}, expected a value")

    def _literal(self, word: str, place: str) -> Value:
        if word in CONSTANTS:
            return CONSTANTS[word]
        if INTEGER.fullmatch(word):
            if len(word) > MAX_DIGITS:
                self._text.fail(f"{place}: an integer of {len(word)} digits, expected at most {MAX_DIGITS}")
            return int(word)
        if not NUMBER.fullmatch(word):
            self._text.fail(f"{place}: got {word[:SHOWN]}, expected a value. Write text in quotes, and a result as $1")
        if not math.isfinite(number := float(word)):
            self._text.fail(f"{place}: the number {word[:SHOWN]} is too large")
        return number

    def _reference(self, place: str) -> Generator[None, None, Value]:
        yield from self._text.skip("$")
        braced = yield from self._text.skip("{")
        digits = yield from self._text.take(DIGITS, SHOWN)
        if not digits or (braced and not (yield from self._text.skip("}"))):
            shown = yield from self._text.shown(f"${'{' * braced}{digits}")
            self._text.fail(f"{place}: got {shown}, expected a reference such as $1. Write other text in quotes")
        return self._checked(lambda: reference_of(digits), self._text.line, f"{place}: ")

    def _list(self, place: str, depth: int) -> Generator[None, None, Value]:
        values, line = list[Value](), self._text.line
        yield from self._text.skip("[")
        while not (yield from self._closed("]", place, line)):
            values.append((yield from self._value((yield from self._text.take(WORD)), place, depth + 1)))
            yield from self._separated("]", place, line)
        return values

    def _object(self, place: str, depth: int) -> Generator[None, None, Value]:
        values, line = dict[str, Value](), self._text.line
        yield from self._text.skip("{")
        while not (yield from self._closed("}", place, line)):
            if (yield from self._text.peek()) not in BODIES:
                self._text.fail(
                    f"{place}: got {(yield from self._text.shown())}, expected the key of an object in quotes"
                )
            key = yield from self._string(place, decoded_key)
            yield from self._text.take(SPACES)
            if not (yield from self._text.skip(":")):
                self._text.fail(
                    f"{place}: got {(yield from self._text.shown())} after the key {key[:SHOWN]!r}, expected a colon"
                )
            yield from self._text.take(SPACES)
            values[key] = yield from self._value((yield from self._text.take(WORD)), place, depth + 1)
            yield from self._separated("}", place, line)
        return values

    def _closed(self, bracket: str, place: str, line: int) -> Generator[None, None, bool]:
        """Skip spaces, and `bracket` if it comes next; return whether it did."""
        yield from self._text.take(SPACES)
        if not (yield from self._text.peek()):
            self._incomplete(place, bracket, line)
        return (yield from self._text.skip(bracket))

    def _separated(self, bracket: str, place: str, line: int) -> Generator[None, None, None]:
        """Skip a comma; `bracket` may come instead."""
        yield from self._text.take(SPACES)
        char = yield from self._text.peek()
        if not char:
            self._incomplete(place, bracket, line)
        if char != bracket and not (yield from self._text.skip(",")):
            self._text.fail(
                f"{place}: got {(yield from self._text.shown())} after a value, expected a comma or {bracket}"
            )

    def _string(self, place: str, decode: Callable[[str], Value]) -> Generator[None, None, Value]:
        """Read a string and return the value that `decode` gives for what is between its quotes."""
        line = self._text.line
        quote = yield from self._text.peek()
        yield from self._text.skip(quote)
        parts = []
        while True:
            parts.append((yield from self._text.take(BODIES[quote])))
            if (yield from self._text.skip(quote)):
                break
            if (yield from self._text.skip("\\")):
                parts.append("\\" + (yield from self._text.next_char()))
            if not (yield from self._text.peek()):
                self._incomplete(place, quote, line)
        return self._checked(lambda: decode("".join(parts)), line, f"{place}: ")

    def _checked(self, make: Callable[[], Value], line: int, place: str = "") -> Value:
        """Return what `make` returns; a `PlanError` of it gets the line."""
        try:
            return make()
        except PlanError as error:
            self._text.fail(f"{place}{str(error).removesuffix('.')}", line)

    def _incomplete(self, place: str, missing: str = ")", line: int | None = None) -> NoReturn:
        self._text.fail(f"{place}: the plan ends before the closing {missing}", line)
