"""Schedules the calls of a plan: the task-fetching unit of LLMCompiler (thesis, section 6.2)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from intaglio.runtime.agents.loops.agent import AgentLimits
from intaglio.runtime.agents.plan.plan import Call, PlanError
from intaglio.runtime.agents.plan.substitution import substituted
from intaglio.runtime.agents.plan.text import rendered
from intaglio.runtime.agents.run.events import AnyEvent, Observer, TaskEnded, TaskPlanned, TaskStarted
from intaglio.runtime.agents.run.observation import Observation
from intaglio.runtime.agents.tools.admission import Admission
from intaglio.runtime.agents.tools.caller import ToolCaller
from intaglio.runtime.agents.tools.result import ToolResult, raised
from intaglio.runtime.agents.tools.tool import Tool

FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 10.0  # seconds before the second attempt, and at most; see `backoff`
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Task:
    """A call that has not ended."""

    call: Call
    tool: Tool
    missing: int = 0  # inputs that have not ended
    order: int = 0  # among those that became ready
    arguments: dict[str, Any] | None = None  # from the first attempt on
    began: float | None = None
    attempts: int = 0
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


class CallScheduler:
    """Runs the calls of a plan, each as soon as its inputs are ready, while the plan is still generated.

    `clock` returns the seconds since the run began; `earlier` are the results of earlier plans. A call whose tool
    raises, returns a value without a text form, or times out has failed, after as many attempts as its tool allows;
    calls that need it are skipped. Use as an async context manager: leaving it cancels what still runs, but for
    threads of plain functions, which cannot be stopped (see `ToolCaller`).
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        limits: AgentLimits,
        observer: Observer | None,
        clock: Callable[[], float],
        earlier: Mapping[int, Observation] = MappingProxyType({}),
    ):
        self._tools, self._limits, self._observer, self._clock = tools, limits, observer, clock
        self._known = dict(earlier)  # and those of this plan
        self._observations: dict[int, Observation] = {}  # of this plan
        self._live: set[int] = set()  # calls that have not ended
        self._dependants: dict[int, list[_Task]] = {}
        self._ready_count = 0
        self._admission: Admission[_Task] = Admission(limits.parallel)
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._left = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def __aenter__(self) -> CallScheduler:
        self._caller, self._loop = ToolCaller(), asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left = True
        self._idle.set()  # release those that wait
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        await self._caller.close()

    @property
    def observations(self) -> Mapping[int, Observation]:
        """The calls that have ended so far, by number."""
        return MappingProxyType(self._observations)

    @property
    def added(self) -> int:
        """Number of added calls."""
        return len(self._observations) + len(self._live)

    def add(self, call: Call) -> None:
        """Add a call, and start it if its inputs are ready.

        Raises `PlanError`, without adding it, for a number that is taken, a reference to a call that was not added
        before, an unknown tool, and more calls than `AgentLimits.tasks`.
        """
        needs = sorted(call.references)
        task = _Task(call, self._checked(call, needs))
        text = rendered(call) if self._observer is not None else ""
        self._live.add(call.number)
        self._idle.clear()
        self._emit(TaskPlanned, number=call.number, tool=call.tool, text=text, needs=needs, thought=call.thought)
        lost = None
        for number in needs:
            if number in self._live:
                task.missing += 1
                self._dependants.setdefault(number, []).append(task)
            elif self._known[number].status != "done":
                lost = lost or self._known[number]
        if lost is not None:
            self._end(_skipped(call, lost, self._clock()))
        elif not task.missing:
            self._queue(task)
        self._start_admitted()

    async def wait(self) -> Mapping[int, Observation]:
        """Wait until all calls added so far have ended, and return the observation of each, by number."""
        await self._idle.wait()
        if self._live:
            raise RuntimeError("The context was left while calls were running.")
        return self.observations

    def _checked(self, call: Call, needs: Collection[int]) -> Tool:
        """Return the tool of a call. Raises `PlanError` for a call that cannot be added."""
        if self._left:
            raise RuntimeError("The context of the call scheduler was left.")
        if call.number in self._known or call.number in self._live:
            raise PlanError(f"call {call.number}: the number is taken. Number the calls on from the last one.")
        for number in needs:
            if number not in self._known and number not in self._live:
                raise PlanError(f"call {call.number}: ${number} is not a call before it. Refer to earlier calls only.")
        if call.tool not in self._tools:
            names = ", ".join(self._tools) or "no tools"
            raise PlanError(f"call {call.number}: no tool {call.tool!r:.80}. Expected one of: {names}.")
        if len(self._known) + len(self._live) >= self._limits.max_calls:
            raise PlanError(f"call {call.number}: more than {self._limits.max_calls} calls. Plan fewer.")
        return self._tools[call.tool]

    def _queue(self, task: _Task) -> None:
        """Queue a task whose inputs are ready."""
        self._ready_count += 1
        task.order = self._ready_count
        self._admission.enter(task.order, task, task.tool)

    def _start_admitted(self) -> None:
        while (task := self._admission.admit()) is not None:
            self._attempt(task)

    def _attempt(self, task: _Task) -> None:
        """Call the tool of an admitted task."""
        call, tool = task.call, task.tool
        if task.arguments is None:
            try:
                task.arguments = substituted(call, tool, self._known)
            except Exception as error:  # a bug there must not stop the run
                self._admission.leave(tool)
                self._end(_ended(task, raised(error), self._clock()))
                return
        task.attempts += 1
        now = self._clock()
        task.began = now if task.began is None else task.began
        self._emit(TaskStarted, now, number=call.number, attempt=task.attempts, arguments=task.arguments)
        seconds = self._limits.tool_timeout if tool.timeout is None else tool.timeout
        self._caller.start(tool, task.arguments, seconds, task.context, partial(self._attempted, task))

    def _attempted(self, task: _Task, result: ToolResult) -> None:
        self._admission.leave(task.tool)
        if result.error is None or task.attempts >= task.tool.attempts:
            self._end(_ended(task, result, self._clock()), result.text)
        else:
            self._retries[task.call.number] = self._loop.call_later(backoff(task.attempts), self._repeat, task)
        self._start_admitted()

    def _repeat(self, task: _Task) -> None:
        del self._retries[task.call.number]
        self._admission.enter(task.order, task, task.tool)
        self._start_admitted()

    def _end(self, observation: Observation, text: str = "") -> None:
        """Record the end of a call; queue its dependants, or skip them and theirs."""
        self._record(observation, text)
        ended = deque([observation])
        while ended:  # no recursion: chains may be long
            observation = ended.popleft()
            for dependant in self._dependants.pop(observation.number, ()):
                if dependant.call.number not in self._live:
                    continue  # skipped before, for another of its inputs
                dependant.missing -= 1
                if observation.status != "done":
                    skipped = _skipped(dependant.call, observation, observation.ended)
                    self._record(skipped)
                    ended.append(skipped)
                elif not dependant.missing:
                    self._queue(dependant)
        if not self._live:
            self._idle.set()

    def _record(self, observation: Observation, text: str = "") -> None:
        number, error = observation.number, observation.error
        self._live.remove(number)
        self._known[number] = self._observations[number] = observation
        result = text if error is None else error
        self._emit(TaskEnded, observation.ended, number=number, status=observation.status, result=result)

    def _emit(self, kind: Callable[..., AnyEvent], seconds: float | None = None, **fields: Any) -> None:
        if self._observer is None:
            return
        try:
            self._observer(kind(seconds=self._clock() if seconds is None else seconds, **fields))
        except (Exception, asyncio.CancelledError) as error:
            _log.warning("the observer of a run raised %s", raised(error).error)


def backoff(attempts: int) -> float:
    """Seconds to wait after `attempts` attempts: twice as long each time, less up to half of it at random."""
    longest = min(FIRST_BACKOFF * 2.0 ** min(attempts - 1, 30), LONGEST_BACKOFF)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  # tasks that failed together do not come back together


def _ended(task: _Task, result: ToolResult, now: float) -> Observation:
    return Observation(
        number=task.call.number,
        tool=task.call.tool,
        arguments=task.arguments or {},
        status="done" if result.error is None else "failed",
        value=result.value,
        error=result.error,
        began=task.began,
        ended=now,
        attempts=task.attempts,
        shown=task.tool.shown,
    )


def _skipped(call: Call, lost: Observation, now: float) -> Observation:
    """The end of a call that needs `lost`; the reason names the call that failed, through all that were skipped."""
    reason = lost.error if lost.status == "skipped" else f"needs ${lost.number}, which failed: {lost.error}"
    return Observation(call.number, call.tool, {}, "skipped", error=reason, ended=now)
