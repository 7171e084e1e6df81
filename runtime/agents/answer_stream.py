"""The answer of an agent while it is written: what is certain of it after each event."""

from __future__ import annotations

from intaglio.runtime.agents.events import AnyEvent, Ended, ModelBegan, ModelWrote
from intaglio.runtime.agents.joiner import DECISION
from intaglio.runtime.agents.planners import Planner


class AnswerStream:
    """Takes the events of a run and returns the pieces of its answer, which together are that of `Ended`.

    Of LLMCompiler and ReAct, what follows "Answer:" is the answer; the text of function calling is one if no call
    follows, so it comes with the end, as does an answer without "Answer:". An answer that was cut off by a limit, or a
    failure, is followed by an empty line and the text that says so.
    """

    def __init__(self, planner: Planner):
        self._reads = planner != "function-calling"
        self._request: int | None = None  # whose text may have the answer
        self._text = ""  # of that request; once the answer has begun, what was not sent
        self._answers = False  # whether the answer has begun
        self._sent = ""

    def take(self, event: AnyEvent) -> str:
        """Return the next piece of the answer; empty where there is none yet."""
        match event:
            case ModelBegan():
                self._request = event.request if self._reads and event.role != "planner" else None
                self._text, self._answers = "", False
            case ModelWrote() if event.request == self._request:
                return self._read(event.text)
            case Ended():
                return self._rest(event.answer)
        return ""

    def _read(self, text: str) -> str:
        self._text += text
        if not self._answers:
            found = DECISION.search(self._text)
            if found is None or found[1] != "Answer":
                return ""
            self._answers, self._text = True, self._text[found.end() :]
        if not self._sent:
            self._text = self._text.lstrip()
        piece = self._text.rstrip()  # blanks at the end are not part of the answer
        self._text = self._text[len(piece) :]
        self._sent += piece
        return piece

    def _rest(self, answer: str) -> str:
        if answer.startswith(self._sent):
            return answer[len(self._sent) :]
        return f"\n\n{answer}"
