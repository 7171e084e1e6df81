"""Reading a plan while a model writes it. The language is described in docs/agents/plan_language.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping

from intaglio.runtime.agents.plan.argument_reader import DIGITS, SPACES, ArgumentReader
from intaglio.runtime.agents.plan.check import by_name, check_call, check_names
from intaglio.runtime.agents.plan.plan import ENDINGS, Call, Join, PlanError, Reference, Value
from intaglio.runtime.agents.plan.prose import ProseReader
from intaglio.runtime.agents.plan.reader import LINE, SHOWN, PlanText, quoted
from intaglio.runtime.agents.plan.surrounding_text import BLANK
from intaglio.runtime.agents.plan.text import MAX_NUMBER
from intaglio.runtime.agents.tools.tool import Tool

NAME = re.compile(r"[\w.\\+-]*")  # of a tool; Markdown has a backslash before an underscore
DECORATION = re.compile(rf"(?:{BLANK}|[*`~>#|(\[\"'“„•▪◦‣➤→–—+-])*")  # before a call: bullets, headings, emphasis, code
SEPARATION = re.compile(rf"(?:{BLANK}|[.):\]}}|=*`\"–—\ufe0f\u20e3、-])*")  # between the number and the name
SEPARATES = re.compile(r"[.):\]}|=–—\u20e3、-]")
IN_NAMES = re.compile(r"[.-]*$")  # of a separation: what a name may begin with
EMPHASIS = re.compile(rf"(?:{BLANK}|[*`])*")
CLOSING = re.compile(rf"(?:{BLANK}|[*_`.;,|\"'“”)\]])*")  # after a call
COMMENT = re.compile(
    rf"#|//|->|=>|→|<(?=[/!a-z|｜])|\((?=[^\W\d])|(?:--?|–|—)(?:{BLANK})*(?=[^\W\d])|to ", re.IGNORECASE
)
FENCE = re.compile(r"```|~~~")
STEPS = frozenset(["step", "task", "call", "action", "tool", "tool_call", "function", "plan", "next"])  # "Step 1: ..."
PREFIXES = ("functions.", "function.", "tools.", "tool.", "default_api.")  # of names


class PlanParser:
    """Reads a plan piece by piece.

    A call is complete at its closing parenthesis. The calls, and the error, do not depend on where the text is cut: an
    error behind calls that the same piece completes is raised by the next `push` or by `finish`.
    """

    def __init__(self, tools: Mapping[str, Tool], known: Collection[int] = ()):
        """`known`: the numbers of earlier calls, which this plan may refer to and continues.

        Raises `UsageError` for a tool with the name of a plan's ending.
        """
        check_names(tools)
        self._tools = tools
        self._numbers = sorted(known)  # of earlier calls, and of those of this plan
        self._first = len(self._numbers)
        self._text = PlanText()
        self._calls: list[Call] = []
        self._error: PlanError | None = None
        self._doubt: PlanError | None = None  # about the first text that is no call
        self._outline: PlanError | None = None  # about the first numbered line without a call
        self._prose = ProseReader(self._text, tools)
        self._follows = False  # whether a call was read on this line
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

    @property
    def _has_calls(self) -> bool:
        return len(self._numbers) > self._first

    def _plan(self) -> Generator[None, None, None]:
        while True:
            self._follows = self._follows and "\n" not in (yield from self._text.take(SPACES))
            yield from self._text.take(SPACES)
            if not (yield from self._text.peek()):
                break
            yield from self._line()
        self._check_mentioned()
        if self._has_calls:
            return
        if error := self._prose.lost or (self._doubt if self.join is None else None):
            raise error
        if self.join is None:
            self._text.fail("the plan has no call. Write calls such as 1. tool(arguments), and join() at the end")

    def _line(self) -> Generator[None, None, None]:
        """Read a call, or a line of anything else."""
        line = self._text.line
        before = yield from self._text.take(DECORATION, SHOWN)
        char = yield from self._text.peek()
        if self.join and char.strip() and char != "<":
            self._text.fail(
                f"text after the end of the plan: {(yield from self._text.shown())}. Write nothing after it"
            )
        if before.startswith("# "):  # a comment, rather than a heading
            yield from self._other(before, line)
        elif char == "$" or "0" <= char <= "9":
            yield from self._numbered_line(before, line)
        else:
            word = yield from self._text.take(NAME, 2 * SHOWN)
            if not FENCE.search(before) or (yield from self._text.peek()).strip():  # not the language of a block
                yield from self._worded_line(before, word, line)

    def _worded_line(self, before: str, word: str, line: int) -> Generator[None, None, None]:
        """Read a line that begins with `word`: a call without a number, "Step 1: search(...)", or anything else."""
        name = self._name(word)
        emphasis = yield from self._text.take(EMPHASIS)
        char = yield from self._text.peek()
        if name is not None and char == "(":
            yield from self._call(self._least, name, line)
        elif name in ENDINGS and char in ("", "\n", "."):
            self._end()
        elif word.lower() not in STEPS:
            yield from self._other(before + word + emphasis, line)
        elif "0" <= char <= "9":
            yield from self._numbered_line(before + word + emphasis, line)
        elif char == ":":
            yield from self._text.take(SEPARATION)
            yield from self._line()
        else:
            yield from self._other(before + word + emphasis, line)

    def _numbered_line(self, before: str, line: int) -> Generator[None, None, None]:
        dollar = "$" * (yield from self._text.skip("$")) + "{" * (yield from self._text.skip("{"))
        digits = yield from self._text.take(DIGITS, SHOWN)
        separation = yield from self._text.take(SEPARATION)
        word = yield from self._text.take(NAME, 2 * SHOWN)
        if word.lower() in STEPS and (yield from self._text.skip(":")):
            yield from self._text.take(SEPARATION)
            word = yield from self._text.take(NAME, 2 * SHOWN)
        name = self._name(IN_NAMES.search(separation)[0] + word) or self._name(word)  # type: ignore[index]
        blanks = yield from self._text.take(EMPHASIS)
        char = yield from self._text.peek()
        if name in ENDINGS and char in ("", "\n", "."):
            self._numbered(digits)
            self._end()
        elif name is not None and char == "(" and digits:
            yield from self._call(self._numbered(digits), name, line)
        elif char == "(" and word and SEPARATES.search(separation):
            self._numbered(digits)
            known = ", ".join([*self._tools, "join"])
            self._text.fail(f"no tool is named {word[:64]!r}, expected one of {known}")
        elif SEPARATES.search(separation) and digits:
            number = self._numbered(digits)
            yield from self._doubted(word + blanks, number, line)
        elif len(digits) == SHOWN:
            self._text.fail(f"got {(yield from self._text.shown(digits))}, expected a call such as 1. tool(arguments)")
        else:
            yield from self._other(before + dollar + digits + separation + word + blanks, line)

    def _doubted(self, before: str, number: int, line: int) -> Generator[None, None, None]:
        """Leave out a numbered line without a call: an outline before the plan, which otherwise ends the plan.

        `before`: what was read of it, after its number.
        """
        text = before + (yield from self._text.take(LINE))
        error = PlanError(
            f"line {line}: got {quoted(text)} after the number {number}, expected the name of a tool and a parenthesis."
        )
        if self._has_calls or self._follows:
            raise error
        self._doubt = self._doubt or error
        self._outline = self._outline or error
        self._prose.note_step(text, error)

    def _other(self, before: str, line: int) -> Generator[None, None, None]:
        """Read a line that is no call, such as a thought; `before` of it has been read."""
        if self._follows:
            shown = yield from self._text.shown(before)
            number = self._numbers[-1]
            self._text.fail(f"got {shown} after call {number}, expected the end of the line")
        doubt = yield from self._prose.read(before, line, self._has_calls)
        self._doubt = self._doubt or doubt
        if self._prose.ended and self._has_calls and not self.join:
            self.join = Join(self._prose.thought())

    def _call(self, number: int, name: str, line: int) -> Generator[None, None, None]:
        yield from self._text.next_char()
        reader = ArgumentReader(self._text, f"call {number}, {name}")
        arguments, keywords = yield from reader.arguments()
        if name in ENDINGS:
            if not all(map(_is_result, [*arguments, *keywords.values()])):
                self._text.fail(f"{name}() takes no arguments", line)
            self._end()
        else:
            if self._outline is not None and not self._has_calls and number > self._least:
                raise self._outline
            call = by_name(Call(number, name, tuple(arguments), keywords, self._prose.thought()), self._tools[name])
            self._checked(lambda: check_call(call, self._tools[name], self._numbers), line)
            self._calls.append(call)
            self._numbers.append(number)
        yield from self._after(number)

    def _end(self) -> None:
        self.join = Join(self._prose.thought())

    def _after(self, number: int) -> Generator[None, None, None]:
        """Read what may follow a call on its line: decoration, a comment, the next call."""
        closing = yield from self._text.take(CLOSING)
        char = yield from self._text.peek()
        if char in ("", "\n"):
            return
        if char in "0123456789$" and closing:
            self._follows = True
            return
        comment = yield from self._text.take(LINE)
        if not COMMENT.match(comment) or self._prose.calls(comment):
            shown = f"{comment.strip()[:SHOWN]!r}"
            self._text.fail(f"got {shown} after call {number}, expected the end of the line")
        if self._prose.ends(comment) and self.join is None:
            self.join = Join()

    def _name(self, word: str) -> str | None:
        """Return the tool, or the end of a plan, that `word` names: in any case, where no other has that name."""
        word = word.replace("\\_", "_").strip("\\")
        for each in (word, word.strip("_"), *(word.removeprefix(prefix) for prefix in PREFIXES)):
            if each in self._tools or each in ENDINGS:
                return each
            same = [name for name in (*self._tools, *ENDINGS) if name.casefold() == each.casefold()]
            if len(same) == 1:
                return same[0]
        return None

    @property
    def _least(self) -> int:
        """The number of the next call, at least."""
        return self._numbers[-1] + 1 if self._numbers else 1

    def _numbered(self, digits: str) -> int:
        number = int(digits) if 0 < len(digits) < len(str(MAX_NUMBER)) else 0
        if number in self._numbers:
            self._text.fail(f"the number {number} is taken, expected {self._least}. Number the calls in order")
        if number > self._least:
            self._check_mentioned()
        if number < self._least:
            self._text.fail(f"call number {digits[:SHOWN]}, expected {self._least}. Number the calls in order")
        return number

    def _check_mentioned(self) -> None:
        """Raise `PlanError` for a call within a thought that was left out, and is not on a line of its own either."""
        if self.join is None:
            for number, error in self._prose.mentioned.items():
                if number not in self._numbers:
                    raise error

    def _checked(self, check: Callable[[], None], line: int) -> None:
        """Call `check`; a `PlanError` of it gets the line."""
        try:
            check()
        except PlanError as error:
            self._text.fail(str(error).removesuffix("."), line)


def _is_result(value: Value) -> bool:
    """Whether a value is the result of a call, or a list of results."""
    return isinstance(value, Reference) or (isinstance(value, list) and all(map(_is_result, value)))
