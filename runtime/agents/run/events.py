"""The events of an agent's run: for the progress in the terminal, the trace, and the timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

Role = Literal["planner", "joiner", "agent"]  # "agent": the model of ReAct and function calling
Status = Literal["done", "failed", "skipped"]  # "skipped": never started, as a call that it needs did not succeed


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An event of a run."""

    seconds: float  # since the beginning of the run


class ModelBegan(Event, frozen=True, tag=True, kw_only=True):
    """A request to a model was sent."""

    request: int  # 1, 2, ...
    role: Role


class ModelWrote(Event, frozen=True, tag=True, kw_only=True):
    """A model generated text."""

    request: int
    text: str


class ModelEnded(Event, frozen=True, tag=True, kw_only=True):
    """The answer of a model is complete, or was interrupted."""

    request: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: str | None = None


class TaskPlanned(Event, frozen=True, tag=True, kw_only=True):
    """A call was read from a plan."""

    number: int
    tool: str
    text: str  # the call as the plan has it, on one line: `3. search("age of $1")`
    needs: list[int]  # the calls whose results it waits for
    thought: str | None = None


class TaskStarted(Event, frozen=True, tag=True, kw_only=True):
    """A tool was called; again after a failure, if it may be repeated."""

    number: int
    attempt: int  # 1, 2, ...
    arguments: dict[str, Any]  # by parameter


class TaskEnded(Event, frozen=True, tag=True, kw_only=True):
    """A call ended, or was skipped."""

    number: int
    status: Status
    result: str  # text of the value, or the reason why there is none


class PlanFailed(Event, frozen=True, tag=True, kw_only=True):
    """A plan could not be read to its end. The calls before the error run, and the joiner gets the reason."""

    reason: str


class Replanned(Event, frozen=True, tag=True, kw_only=True):
    """Another plan follows."""

    reason: str  # the joiner's


class Ended(Event, frozen=True, tag=True, kw_only=True):
    """The run is over."""

    answer: str
    complete: bool  # False: a limit, or a failure, ended the run; the answer says which


AnyEvent = (
    ModelBegan | ModelWrote | ModelEnded | TaskPlanned | TaskStarted | TaskEnded | PlanFailed | Replanned | Ended
)  # for reading a trace
Observer = Callable[[AnyEvent], None]
