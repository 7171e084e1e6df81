"""A run of an agent, put together from its events, for the report, the timeline and the latency model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from intaglio.runtime.agents.run.events import (
    AnyEvent,
    Ended,
    ModelBegan,
    ModelEnded,
    ModelWrote,
    PlanFailed,
    Replanned,
    Role,
    Status,
    TaskEnded,
    TaskPlanned,
    TaskStarted,
)


@dataclass
class RequestSpan:
    """A request to the model. Times are seconds since the beginning of the run."""

    number: int
    role: Role
    began: float
    ended: float | None = None  # None: it did not end within the run
    first: float | None = None  # when the first text came
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None


@dataclass
class TaskSpan:
    """A call of a tool, with the waiting before it."""

    number: int
    tool: str
    text: str  # the call as the plan has it
    needs: list[int]
    planned: float
    request: int | None  # the request whose answer has the call
    thought: str | None = None
    began: float | None = None  # None: never started
    ended: float | None = None
    attempts: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)
    status: Status | Literal["unfinished"] = "unfinished"
    result: str = ""


@dataclass
class RunRecord:
    """A run, as far as its events were added."""

    requests: dict[int, RequestSpan] = field(default_factory=dict)  # by number, in order
    tasks: dict[int, TaskSpan] = field(default_factory=dict)
    plan_errors: list[str] = field(default_factory=list)  # of plans that could not be read to their end
    replans: list[str] = field(default_factory=list)  # the reasons for further plans
    answer: str | None = None  # None: the run has not ended
    complete: bool = False
    seconds: float = 0.0  # of the run; until it ends, of its last event

    def add(self, event: AnyEvent) -> None:
        """Add the next event. One about a request or a call that never began is ignored: a trace may be cut."""
        self.seconds = max(self.seconds, event.seconds)
        match event:
            case ModelBegan():
                self.requests[event.request] = RequestSpan(event.request, event.role, event.seconds)
            case ModelWrote() | ModelEnded() if event.request in self.requests:
                _add_to_request(self.requests[event.request], event)
            case TaskPlanned():
                planner = next((each for each in reversed(self.requests.values()) if each.role != "joiner"), None)
                self.tasks[event.number] = TaskSpan(
                    event.number,
                    event.tool,
                    event.text,
                    event.needs,
                    event.seconds,
                    planner.number if planner is not None else None,
                    event.thought,
                )
            case TaskStarted() | TaskEnded() if event.number in self.tasks:
                _add_to_task(self.tasks[event.number], event)
            case PlanFailed():
                self.plan_errors.append(event.reason)
            case Replanned():
                self.replans.append(event.reason)
            case Ended():
                self.answer, self.complete = event.answer, event.complete

    def end_of(self, span: RequestSpan | TaskSpan) -> float:
        """Return when a request or a call ended; the end of the run, if it did not end before."""
        return self.seconds if span.ended is None else span.ended


def record_of(events: Iterable[AnyEvent]) -> RunRecord:
    """Return the run of `events`, in their order."""
    record = RunRecord()
    for event in events:
        record.add(event)
    return record


def _add_to_request(request: RequestSpan, event: ModelWrote | ModelEnded) -> None:
    if isinstance(event, ModelWrote):
        request.first = event.seconds if request.first is None else request.first
        request.text += event.text
        return
    request.ended, request.error = event.seconds, event.error
    request.prompt_tokens, request.cached_tokens = event.prompt_tokens, event.cached_tokens
    request.completion_tokens = event.completion_tokens


def _add_to_task(task: TaskSpan, event: TaskStarted | TaskEnded) -> None:
    if isinstance(event, TaskStarted):
        task.began = event.seconds if task.began is None else task.began
        task.attempts, task.arguments = event.attempt, event.arguments
        return
    task.ended, task.status, task.result = event.seconds, event.status, event.result
