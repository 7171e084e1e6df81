"""Runs of agents as events, with times that are easy to check by hand."""

from __future__ import annotations

from collections.abc import Sequence

from intaglio.runtime.agents.run.events import (
    AnyEvent,
    Ended,
    ModelBegan,
    ModelEnded,
    ModelWrote,
    Role,
    Status,
    TaskEnded,
    TaskPlanned,
    TaskStarted,
)


def request(number: int, role: Role, began: float, ended: float, text: str = "text") -> list[AnyEvent]:
    """A request of 100 prompt tokens, 60 of them cached, and 8 generated tokens."""
    return [
        ModelBegan(seconds=began, request=number, role=role),
        ModelWrote(seconds=(began + ended) / 2, request=number, text=text),
        ModelEnded(seconds=ended, request=number, prompt_tokens=100, cached_tokens=60, completion_tokens=8),
    ]


def task(
    number: int,
    planned: float,
    began: float | None,
    ended: float,
    needs: Sequence[int] = (),
    status: Status = "done",
    result: str = "result",
    tool: str = "search",
) -> list[AnyEvent]:
    """A call; `began` is None for a skipped one."""
    text = f'{number}. {tool}("{" ".join(f"${each}" for each in needs) or "a"}")'
    events: list[AnyEvent] = [
        TaskPlanned(seconds=planned, number=number, tool=tool, text=text, needs=list(needs), thought="why")
    ]
    if began is not None:
        events.append(TaskStarted(seconds=began, number=number, attempt=1, arguments={"query": "a"}))
    return [*events, TaskEnded(seconds=ended, number=number, status=status, result=result)]


def run_of(
    ended: float, *parts: Sequence[AnyEvent], answer: str = "It is so.", complete: bool = True
) -> list[AnyEvent]:
    """The events of a run in the order of their times; equal times keep the given order."""
    events = sorted((event for part in parts for event in part), key=lambda event: event.seconds)
    return [*events, Ended(seconds=ended, answer=answer, complete=complete)]


# Three independent calls, as in the thesis' model: planned after 1.0, 1.5 and 2.5 s, taking 3, 1 and 2 s.
# The plan ends with the last of them, which is also the last call to finish.
INDEPENDENT = run_of(
    5.5,
    request(1, "planner", 0.0, 2.5),
    task(1, 1.0, 1.0, 4.0),
    task(2, 1.5, 1.5, 2.5),
    task(3, 2.5, 2.5, 4.5),
    request(2, "joiner", 4.5, 5.5),
)
