"""Results and cost of an agent's run: the report of the verb `agent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from intaglio.runtime.agents.loops.planners import Planner
from intaglio.runtime.agents.plan.surrounding_text import encodable
from intaglio.runtime.agents.reports.latency_model import Latency, latency_of
from intaglio.runtime.agents.reports.run_record import RunRecord, record_of
from intaglio.runtime.agents.run.events import AnyEvent, Status


class UsageReport(msgspec.Struct, frozen=True):
    """The requests of a run to its model, and their tokens."""

    requests: int
    prompt_tokens: int
    cached_tokens: int  # of the prompts
    completion_tokens: int


class TaskReport(msgspec.Struct, frozen=True):
    """A call of a tool. Times are seconds since the beginning of the run."""

    number: int
    tool: str
    call: str  # as the plan has it
    needs: list[int]
    status: Status | Literal["unfinished"]  # "unfinished": a limit ended the run before it
    result: str  # text of the value, or the reason why there is none
    planned: float
    began: float | None
    ended: float | None
    attempts: int


class AgentRun(msgspec.Struct, frozen=True):
    """The answer to a question, and how it came about."""

    question: str
    answer: str
    complete: bool  # False: a limit, or a failure, ended the run; the answer says which
    seconds: float
    planner: Planner
    usage: UsageReport
    tasks: list[TaskReport]
    plan_errors: list[str]  # of plans that could not be read to their end
    replans: list[str]  # the reasons for further plans
    latency: Latency


def usage_of(record: RunRecord) -> UsageReport:
    """Return what the requests of a run used."""
    requests = record.requests.values()
    return UsageReport(
        len(requests),
        sum(each.prompt_tokens for each in requests),
        sum(each.cached_tokens for each in requests),
        sum(each.completion_tokens for each in requests),
    )


def run_report(question: str, planner: Planner, events: Sequence[AnyEvent]) -> AgentRun:
    """Return the report of a run from all of its events. Raises `UsageError` for a run without an end.

    Halves of surrogate pairs, which tools and servers may send, become "?": no encoding has them.
    """
    record = record_of(events)
    return AgentRun(
        question=question,
        answer=encodable(record.answer or ""),
        complete=record.complete,
        seconds=record.seconds,
        planner=planner,
        usage=usage_of(record),
        tasks=[
            TaskReport(
                task.number,
                task.tool,
                task.text,
                task.needs,
                task.status,
                encodable(task.result),
                task.planned,
                task.began,
                task.ended,
                task.attempts,
            )
            for task in record.tasks.values()
        ],
        plan_errors=[encodable(reason) for reason in record.plan_errors],
        replans=[encodable(reason) for reason in record.replans],
        latency=latency_of(events),
    )
