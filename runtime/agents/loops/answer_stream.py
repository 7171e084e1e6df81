"""The streamed answer of an agent: the part that is certain after each event."""

from __future__ import annotations

import re

from intaglio.runtime.agents.loops.planners import Planner
from intaglio.runtime.agents.run.events import AnyEvent, Ended, ModelBegan, ModelWrote

# Of an answer in its plain form, after at most a thought: the part that can be streamed.
PLAIN = re.compile(
    r"(?:\s*Thought:[^<\[◁\n]*\n(?:(?!\s*(?:Answer|Final|Replan|Action))[^<\[◁\n]*\n)*)?\s*Answer:(?=[^*_`\n])"
)
UNCERTAIN = re.compile(r"[\s.…<\[*_`#>\"'“„«(-]*(?:r?e?-?p?l?a?n?|re-?plan.*)$", re.IGNORECASE)  # may be no answer
TAIL = re.compile(r"(?:[\s*_`\"'“”„»]|<[^<>\n]{0,48}>?)*$")  # what may be left out at the end, or begin reasoning
MOST_HELD = 1024  # characters at the end that are held back; a longer row of marks is part of the answer


class AnswerStream:
    """Takes the events of a run and returns the pieces of its answer, which add up to that of `Ended`.

    Of LLMCompiler and ReAct, what follows "Answer:" is the answer; the text of function calling is one if no call
    follows, so it comes with the end, as does an answer in any other form. An answer that was cut off by a limit, or a
    failure, is followed by an empty line and the reason.
    """

    def __init__(self, planner: Planner):
        self._reads = planner != "function-calling"
        self._request: int | None = None  # whose text may have the answer
        self._reader = AnswerReader()
        self._sent = ""

    def take(self, event: AnyEvent) -> str:
        """Return the next piece of the answer; empty where there is none yet."""
        match event:
            case ModelBegan():
                self._request = event.request if self._reads and event.role != "planner" else None
                self._reader = AnswerReader()
            case ModelWrote() if event.request == self._request:
                piece = self._reader.take(event.text)
                self._sent += piece
                return piece
            case Ended():
                return self._rest(event.answer)
        return ""

    def _rest(self, answer: str) -> str:
        if answer.startswith(self._sent):
            return answer[len(self._sent) :]
        return f"\n\n{answer}"


class AnswerReader:
    """Parses the answer of a joiner while it streams: the certain part of the full answer."""

    def __init__(self) -> None:
        self._text = ""  # read so far; once the answer has begun, what was not returned
        self._begun = False  # whether the answer has begun
        self._returned = False  # whether a part of it was returned

    def take(self, text: str) -> str:
        """Return the next part of the answer."""
        self._text += text
        if not self._begun:
            found = PLAIN.match(self._text)
            if found is None:
                return ""
            self._begun, self._text = True, self._text[found.end() :]
        if not self._returned:
            self._text = self._text.lstrip()
            if UNCERTAIN.match(self._text):
                return ""
        tail = TAIL.search(self._text, max(0, len(self._text) - MOST_HELD))
        assert tail is not None  # it matches at the end
        certain = tail.start()
        piece, self._text = self._text[:certain], self._text[certain:]
        self._returned = self._returned or bool(piece)
        return piece
