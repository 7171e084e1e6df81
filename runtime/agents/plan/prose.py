"""The lines of a plan that are not calls: thoughts, reasoning, prose, comments; and lines that may be calls."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator

from intaglio.runtime.agents.plan.plan import PlanError
from intaglio.runtime.agents.plan.reader import SHOWN, PlanText
from intaglio.runtime.agents.plan.surrounding_text import CLOSING, LAST_CHARACTERS, LONGEST_TAG, MARK, OPENING

UP_TO_TAG = re.compile(rf"[^\n{re.escape(LAST_CHARACTERS)}]*")  # the last character of a tag, or the end of the line
UP_TO_TAG_ANYWHERE = re.compile(rf"[^{re.escape(LAST_CHARACTERS)}]*")
THOUGHT = re.compile(r"[\W_]*thoughts?\s*\d*[\s*_`]*[:\uff1a][\s*_`]*(.*?)\s*", re.IGNORECASE | re.DOTALL)
# Lines of another kind of text: an invented result or answer, and another question.
OBSERVATION = re.compile(r"[\W_]*observations?\s*\d*[\s*_`]*[:\uff1a]", re.IGNORECASE)
ANSWER = re.compile(r"[\W_]*(?:final[\s_]*)?answer[\s*_`]*[:\uff1a]", re.IGNORECASE)
QUESTION = re.compile(r"[\W_]*question\s*\d*[\s*_`]*[:\uff1a]", re.IGNORECASE)
LIKE_A_CALL = re.compile(r"[\W_]*[\w.]+\(.*\)[\s*_`.;,]*", re.DOTALL)
END = re.compile(r"<END_OF_PLAN>", re.IGNORECASE)
SHORT = 24  # characters before a call on a line that has no other words


class ProseReader:
    """Reads from `text`; keeps the thoughts for the next call."""

    def __init__(self, text: PlanText, tools: Collection[str]):
        self._text = text
        names = "|".join(sorted(map(re.escape, tools), key=len, reverse=True)) or "(?!)"
        arguments = r"(?:[\"'`“„«‘$\[{\d)-]|\w+\s*=)"  # how they begin
        self._numbered = re.compile(rf"(?:\b(\d+)\s*[.):]|\$(\d+)\s*[=:])[\s*_`]*(?:{names})[\s*_`]*\(")
        self._called = re.compile(rf"(?<![\w.])(?:{names})[*_`]*\(\s*{arguments}", re.IGNORECASE)
        self._named = re.compile(rf"(?<![\w.])(?:{names})(?![\w.])", re.IGNORECASE)
        self._used = re.compile(rf"(?<![\w.])(?:{names})[*_`\"']*\s*[(\[{{=:]|[\"'](?:{names})[\"']", re.IGNORECASE)
        self._alone = re.compile(
            rf".{{0,{SHORT}}}(?:[=:][\s*_`]*(?:{names})[\s*_`]*[(\[{{]|[\W_](?:{names})[\s*_`]*\(\s*{arguments})"
            r".*[)\]}][\s*_`.;,]*",
            re.DOTALL,
        )
        self._thoughts: list[str] = []
        self.mentioned: dict[int, PlanError] = {}  # numbers of calls within thoughts
        self.lost: PlanError | None = None  # of the first line left out that asks for a tool, so that no plan is empty
        self.ended = False  # whether a mark of the plan's end was read

    def thought(self) -> str | None:
        """Return the thoughts since the last call, a line each."""
        thoughts, self._thoughts = self._thoughts, []
        return "\n".join(thoughts) or None

    def ends(self, text: str) -> bool:
        """Whether `text` has a mark of the plan's end."""
        return END.search(text) is not None

    def calls(self, text: str) -> bool:
        """Whether `text` has a call in it."""
        return self._called.search(text) is not None

    def read(self, before: str, line: int, after_calls: bool) -> Generator[None, None, PlanError | None]:
        """Read the rest of a line of which `before` was read, or reasoning up to its closing tag.

        Returns the error to report if no call follows. Raises `PlanError` for a line that may be a call.
        """
        text = before
        while True:
            text += yield from self._text.take(UP_TO_TAG)
            if (yield from self._text.peek()) in ("", "\n"):
                break
            text += yield from self._text.next_char()
            tail = "" if text.startswith("Thought:") else text[-LONGEST_TAG:]
            if _ends_with(OPENING, tail):
                yield from self._reasoning()
                return None
            if _ends_with(CLOSING, tail):  # of reasoning whose beginning the template wrote
                if after_calls:
                    self._text.fail("reasoning ends after calls of the plan. Write the plan after it")
                self._thoughts = []
                return None
        return self._judge(text, line, after_calls)

    def _reasoning(self) -> Generator[None, None, None]:
        line, tail, depth = self._text.line, "", 1
        while depth:
            tail += (yield from self._text.take(UP_TO_TAG_ANYWHERE)) + (yield from self._text.next_char())
            if not tail or tail[-1] not in LAST_CHARACTERS:
                self._text.fail("the reasoning has no end, so that no plan follows. Write the plan after it", line)
            tail = tail[-LONGEST_TAG:]
            depth += _ends_with(OPENING, tail) - _ends_with(CLOSING, tail)

    def _judge(self, text: str, line: int, after_calls: bool) -> PlanError | None:
        """Keep a thought, leave prose out, and raise `PlanError` for a line that may be more than that."""
        if found := THOUGHT.fullmatch(text):
            if found[1]:
                self._thoughts.append(found[1])
            for call in self._numbered.finditer(found[1]):
                message = f"line {line}: a call within a thought: {call[0]}... Write each call on a line of its own."
                self.mentioned[int((call[1] or call[2])[:SHOWN])] = PlanError(message)
            return None
        self.ended = self.ended or self.ends(text)
        line_text = MARK.sub("", text).strip()
        shown = f"{line_text[:SHOWN]!r}"
        if ANSWER.match(line_text):
            self._text.fail(f"got {shown}, expected calls: a plan has no answer", line)
        if OBSERVATION.match(line_text):
            self._text.fail(f"got {shown}, expected calls: their results come after the plan", line)
        if after_calls and QUESTION.match(line_text):
            self._text.fail(f"got {shown}, expected the end of the plan: join()", line)
        expected = "expected a line such as Thought: text, or 1. tool(arguments)"
        if self._numbered.search(line_text) or LIKE_A_CALL.fullmatch(line_text) or self._alone.fullmatch(line_text):
            self._text.fail(f"got {shown}, {expected}", line)
        if not any(map(str.isalnum, line_text)):
            return None
        error = PlanError(f"line {line}: got {shown}, {expected}.")
        if self._used.search(line_text):
            self.lost = self.lost or error
        return error

    def note_step(self, text: str, error: PlanError) -> None:
        """Keep the `error` of a numbered line without a call, if it names a tool."""
        if self._named.search(text):
            self.lost = self.lost or error


def _ends_with(pattern: re.Pattern[str], text: str) -> bool:
    return any(match.end() == len(text) for match in pattern.finditer(text))
