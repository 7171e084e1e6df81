"""The latency model of the thesis (appendix D.2, equations D.1 to D.6), from the events of one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from intaglio.errors import UsageError
from intaglio.runtime.agents.reports.run_record import RequestSpan, RunRecord, TaskSpan, record_of
from intaglio.runtime.agents.run.events import AnyEvent


class CallLatency(msgspec.Struct, frozen=True):
    """One call, P_i and E_i of the thesis."""

    number: int
    tool: str
    needs: list[int]
    plan_seconds: float  # T_P(P_i): from the call before it, or the beginning of the request, until it was read
    tool_seconds: float  # T_E(E_i): from its first attempt to its end; 0 for a call that never started


class Predicted(msgspec.Struct, frozen=True):
    """Seconds for planning and calls of tools, without the final answer."""

    react: float  # D.1
    llmcompiler: float  # D.2
    streaming: float  # D.3: LLMCompiler, with calls that start while the plan is written


class Latency(msgspec.Struct, frozen=True):
    """What the model predicts from the times of one run, beside that run."""

    calls: list[CallLatency]
    predicted: Predicted
    measured: float  # seconds of the run without `answer_seconds`
    answer_seconds: float  # requests that planned no call: the joiner, or the last turn
    total_seconds: float  # of the run
    speedup: float | None  # D.4: ReAct over LLMCompiler; None where a time is 0, as without calls
    streaming_speedup: float | None  # the same with streaming
    max_speedup: float | None  # D.5: tools take all the time
    min_speedup: float | None  # D.6: planning takes all the time


def latency_of(events: Iterable[AnyEvent], react_planning: Sequence[float] | None = None) -> Latency:
    """Predict the latency of ReAct and of LLMCompiler for the calls of a run.

    The thesis considers one plan of N calls that do not need each other; for these, the numbers are its equations:

    - D.1, ReAct: the sum of T_P(P_i) + T_E(E_i)
    - D.2, LLMCompiler: the sum of T_P(P_i), and the slowest call
    - D.3, with streaming: the sum of T_P(P_i), and the last call, E_N, which has to be the last one to end
    - D.4, speed-up: D.1 / D.2
    - D.5, its upper bound: the sum of T_E(E_i) over the slowest call; N if all take the same time
    - D.6, its lower bound: the sum of ReAct's T_P(P_i) over that of LLMCompiler

    For any other plan:

    - Where calls need each other, the slowest call is the slowest chain of them (D.2, D.5).
    - With streaming (D.3) a call begins when it has been planned and all that it needs have ended; the plan takes until
      the last of its calls has ended, whichever that is.
    - What a planner writes after its last call, such as `join()`, is part of LLMCompiler's planning (D.2, D.6); with
      streaming it overlaps with the calls.
    - Several plans follow one another: their times add up. A later plan finds the results of earlier ones.

    `react_planning`: T_P(P_i) of a ReAct run of the same question, `[call.plan_seconds for call in latency.calls]`. By
    default ReAct is taken to plan a call in the same time, as the thesis does for D.6, which is then 1 but for the end
    of the plan.

    Calls that were read together, as all are without streaming and with function calling, count for the first of them.
    Raises `UsageError` for a run without an end.
    """
    record = record_of(events)
    if record.answer is None:
        raise UsageError("latency: the run has no end, expected all of its events. Wait until it has ended.")
    plans = [_Plan(record, request) for request in record.requests.values()]
    calls = [call for plan in plans for call in plan.calls]
    planning = sum(plan.planning for plan in plans)
    react = sum(react_planning) if react_planning is not None else sum(call.plan_seconds for call in calls)
    tools = sum(call.tool_seconds for call in calls)
    slowest = sum(plan.slowest_chain for plan in plans)
    predicted = Predicted(react + tools, planning + slowest, sum(plan.streamed for plan in plans))
    answer = sum(record.end_of(plan.request) - plan.request.began for plan in plans if not plan.calls)
    return Latency(
        calls=calls,
        predicted=predicted,
        measured=record.seconds - answer,
        answer_seconds=answer,
        total_seconds=record.seconds,
        speedup=_ratio(predicted.react, predicted.llmcompiler),
        streaming_speedup=_ratio(predicted.react, predicted.streaming),
        max_speedup=_ratio(tools, slowest),
        min_speedup=_ratio(react, planning),
    )


class _Plan:
    """A request and the calls that its answer has."""

    def __init__(self, record: RunRecord, request: RequestSpan):
        self.request = request
        tasks = [task for task in record.tasks.values() if task.request == request.number]
        read = [request.began, *(task.planned for task in tasks)]
        self.calls = [
            CallLatency(task.number, task.tool, task.needs, planned - before, _tool_seconds(record, task))
            for task, before, planned in zip(tasks, read, read[1:], strict=False)
        ]
        # A call of a model's API is planned once the request has ended.
        self.planning = max(record.end_of(request), read[-1]) - request.began if tasks else 0.0
        self.slowest_chain = max(_ends(self.calls, [0.0] * len(tasks)), default=0.0)
        self.streamed = max([*_ends(self.calls, [each - request.began for each in read[1:]]), self.planning])


def _ends(calls: Sequence[CallLatency], planned: Sequence[float]) -> list[float]:
    """Return when each call ends, if it begins once it is planned and the calls that it needs have ended."""
    ends: dict[int, float] = {}
    for call, ready in zip(calls, planned, strict=True):  # calls refer to those before them only
        inputs = [ends.get(number, 0.0) for number in call.needs]  # 0: of an earlier plan
        ends[call.number] = max([ready, *inputs]) + call.tool_seconds
    return list(ends.values())


def _tool_seconds(record: RunRecord, task: TaskSpan) -> float:
    return 0.0 if task.began is None else record.end_of(task) - task.began


def _ratio(over: float, under: float) -> float | None:
    return over / under if under > 0 else None
