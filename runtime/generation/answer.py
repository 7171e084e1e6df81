"""An answer in progress: its text so far, and the tool calls in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from intaglio.runtime.generation.parts import Part
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.tool_calls.calling import ToolCalling
from intaglio.runtime.generation.tool_calls.events import ArgumentsPiece, CallStarted, ContentPiece, ToolEvent
from intaglio.runtime.generation.tool_calls.parser import ToolCallParser
from intaglio.runtime.sampling.json_schema.relax import ArgumentCheck


@dataclass
class PartialCall:
    """A tool call so far."""

    id: str
    name: str
    arguments: str = ""  # JSON text


@dataclass
class Answer:
    """One text, split into content and tool calls as it arrives."""

    parser: ToolCallParser | None  # None: all of the text is content
    checks: Mapping[str, ArgumentCheck] = field(default_factory=dict)  # of the arguments of a finished call, by tool
    content: str = ""
    calls: list[PartialCall] = field(default_factory=list)
    result: Generated | None = None  # after the end of the text

    def take(self, part: Part) -> Sequence[ToolEvent]:
        """Add the next part of the text; return what is certain now.

        Raises `EngineError` for a finished call whose arguments are not of the schema of its tool.
        """
        self.result = part.result
        events: list[ToolEvent] = []
        if self.parser is not None:
            events = self.parser.feed(part.text)
            if part.result is not None:
                events += self.parser.finish(part.result.stopped != "eos", part.result.stop_string or "")
        elif part.text:
            events = [ContentPiece(part.text)]
        for event in events:
            if isinstance(event, ContentPiece):
                self.content += event.text
            elif isinstance(event, CallStarted):
                self.calls.append(PartialCall(event.id, event.name))
            elif isinstance(event, ArgumentsPiece):
                self.calls[event.index].arguments += event.text
            elif (check := self.checks.get(self.calls[event.index].name)) is not None:
                check(self.calls[event.index].arguments)
        return events

    @property
    def cut_off(self) -> bool:
        """Whether the text ended within a call."""
        return self.parser is not None and self.parser.cut_off

    @property
    def finish_reason(self) -> str:
        """Why the text ended, in the words of OpenAI's API; "tool_calls" if all calls are complete."""
        assert self.result is not None, "the text has ended"
        reason = finish_reason(self.result)
        return "tool_calls" if self.calls and reason == "stop" and not self.cut_off else reason


def finish_reason(result: Generated) -> str:
    """OpenAI's name of the reason why a text ended."""
    return "length" if result.stopped in ("length", "capacity") else "stop"


def answers_for(count: int, calling: ToolCalling | None) -> list[Answer]:
    """Empty answers for as many texts."""
    return [Answer(calling.parser(), calling.checks) if calling is not None else Answer(None) for _ in range(count)]
