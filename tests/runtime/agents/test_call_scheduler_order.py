"""Random task graphs: order, times and concurrency in simulated time; threads in real time."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from covering import examples
from event_loops import run, run_in_virtual_time
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.runtime.agents.loops.agent import AgentLimits
from intaglio.runtime.agents.loops.call_scheduler import CallScheduler
from intaglio.runtime.agents.plan.plan import Call, Reference
from intaglio.runtime.agents.run.events import AnyEvent, TaskEnded, TaskPlanned, TaskStarted
from intaglio.runtime.agents.run.observation import Observation
from intaglio.runtime.agents.tools.tool import Tool

PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}, "inputs": {"type": "array"}}}
TIMEOUT = 3.0
ATTEMPTS = {"once": 1, "twice": 2, "narrow": 1}


@dataclass(frozen=True)
class Planned:
    """A task, and the behaviour of its tool."""

    number: int
    tool: str
    needs: tuple[int, ...]
    added: float
    seconds: float  # of each attempt
    end: Literal["return", "raise", "hang"]
    failures: int  # attempts that raise before

    @property
    def succeeds(self) -> bool:
        return self.end == "return" and self.failures < ATTEMPTS[self.tool]


@dataclass
class Ran:
    """The observed calls."""

    added: dict[int, float] = field(default_factory=dict)
    attempts: list[tuple[int, float, float]] = field(default_factory=list)  # number, began, ended
    events: list[AnyEvent] = field(default_factory=list)
    observations: Mapping[int, Observation] = field(default_factory=dict)


def graph(size: int, seed: int) -> list[Planned]:
    """A random graph: from independent tasks to chains."""
    generator = random.Random(seed)
    most, reach = generator.choice([0, 1, 3]), generator.choice([2, 10, size])
    failing, gap = generator.choice([0.0, 0.03, 0.3]), generator.choice([0.0, 0.1, 1.0])
    tasks, added = [], 0.0
    for number in range(1, size + 1):
        earlier = range(max(1, number - reach), number)
        needs = generator.sample(earlier, min(len(earlier), generator.randint(0, most)))
        added += generator.choice([0.0, gap])
        end: Any = generator.choice(["raise", "hang"]) if generator.random() < failing else "return"
        tool, seconds = generator.choice(list(ATTEMPTS)), generator.choice([0.0, generator.uniform(0, 2)])
        tasks.append(Planned(number, tool, tuple(needs), added, seconds, end, int(generator.random() < failing)))
    return tasks


async def ran(tasks: list[Planned], parallel: int, narrow: int | None) -> Ran:
    """Run the graph while a planner streams it."""
    loop, seen, by_number, tries = asyncio.get_running_loop(), Ran(), {each.number: each for each in tasks}, Counter()

    async def function(number: int, inputs: list[int]) -> int:
        task, began = by_number[number], loop.time()
        assert inputs == list(task.needs)
        tries[number] += 1
        try:
            await asyncio.sleep(1e6 if task.end == "hang" else task.seconds)
        finally:
            seen.attempts.append((number, began, loop.time()))
        if task.end == "raise" or tries[number] <= task.failures:
            raise ValueError(f"no {number}")
        return number

    tools = {
        name: Tool(name, "", PARAMETERS, function, attempts=attempts, limit=narrow if name == "narrow" else None)
        for name, attempts in ATTEMPTS.items()
    }
    limits = AgentLimits(parallel=parallel, tool_timeout=TIMEOUT)
    async with CallScheduler(tools, limits, seen.events.append, loop.time) as scheduler:
        for task in tasks:
            await asyncio.sleep(task.added - loop.time())
            seen.added[task.number] = loop.time()
            scheduler.add(Call(task.number, task.tool, (task.number, [Reference(number) for number in task.needs])))
        seen.observations = await scheduler.wait()
    return seen


def check_outcomes(tasks: list[Planned], seen: Ran) -> None:
    """Each task ran as often as it had to, never before its inputs, and failures skipped their dependants alone."""
    assert set(seen.observations) == {task.number for task in tasks}
    calls = Counter(number for number, _, _ in seen.attempts)
    for task in tasks:
        ended = seen.observations[task.number]
        needs = [seen.observations[number] for number in task.needs]
        if lost := [need for need in needs if need.status != "done"]:
            assert ended.status == "skipped"
            assert calls[task.number] == 0 and ended.began is None
            assert ended.ended == max(seen.added[task.number], min(need.ended for need in lost))
            continue
        allowed = ATTEMPTS[task.tool]
        assert ended.status == ("done" if task.succeeds else "failed")
        expected = min(task.failures + 1, allowed) if task.end == "return" else allowed
        assert calls[task.number] == ended.attempts == expected
        assert ended.began is not None and ended.began >= ready(task, seen)
        assert ended.ended == max(end for number, _, end in seen.attempts if number == task.number)


def ready(task: Planned, seen: Ran) -> float:
    """When the last input of the task was there."""
    return max([seen.added[task.number], *(seen.observations[number].ended for number in task.needs)])


def check_events(tasks: list[Planned], seen: Ran) -> None:
    """Every task is planned, started as often as its tool is called, and ended, in this order of time."""
    times = [event.seconds for event in seen.events]
    assert times == sorted(times)
    for task in tasks:
        kinds = [type(event) for event in seen.events if getattr(event, "number", None) == task.number]
        attempts = seen.observations[task.number].attempts
        assert kinds == [TaskPlanned, *[TaskStarted] * attempts, TaskEnded]


@settings(max_examples=examples(60), deadline=None)
@given(size=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_tasks_start_when_their_inputs_are_ready(size: int, seed: int) -> None:
    tasks = graph(size, seed)
    seen = run_in_virtual_time(ran(tasks, parallel=size, narrow=None))
    check_outcomes(tasks, seen)
    check_events(tasks, seen)
    for task in tasks:
        if (began := seen.observations[task.number].began) is not None:
            assert began == ready(task, seen)


@settings(max_examples=examples(60), deadline=None)
@given(size=st.integers(1, 200), seed=st.integers(0, 2**32), parallel=st.integers(1, 8), narrow=st.integers(1, 4))
def test_limits_hold_and_no_slot_stays_idle(size: int, seed: int, parallel: int, narrow: int) -> None:
    tasks = graph(size, seed)
    seen = run_in_virtual_time(ran(tasks, parallel, narrow))
    check_outcomes(tasks, seen)
    check_events(tasks, seen)
    tools = {task.number: task.tool for task in tasks}
    moments = sorted({moment for _, *both in seen.attempts for moment in both})
    for moment, following in itertools.pairwise(moments):
        running = [tools[number] for number, began, ended in seen.attempts if began <= moment and ended >= following]
        assert len(running) <= parallel and running.count("narrow") <= narrow
        for task in tasks:
            began = seen.observations[task.number].began
            if began is not None and ready(task, seen) <= moment and following <= began:  # it waits
                assert len(running) == parallel or (task.tool == "narrow" and running.count("narrow") == narrow)


@settings(max_examples=examples(20), deadline=None)
@given(size=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_blocking_tools_run_once_after_their_inputs(size: int, seed: int) -> None:
    generator, numbers = random.Random(seed), range(1, size + 1)
    needs = {number: generator.sample(range(1, number), generator.randint(0, min(3, number - 1))) for number in numbers}
    seconds = {number: generator.choice([0.0, generator.uniform(0, 0.005)]) for number in numbers}
    called, ended, early = list[int](), set[int](), list[int]()

    def function(number: int, inputs: list[int]) -> int:
        called.append(number)
        if inputs != needs[number] or not ended.issuperset(inputs):
            early.append(number)
        time.sleep(seconds[number])
        ended.add(number)
        return number

    async def main() -> Mapping[int, Observation]:
        tools = {"wait": Tool("wait", "", PARAMETERS, function)}
        limits = AgentLimits(parallel=generator.choice([1, 4, 64]))
        async with CallScheduler(tools, limits, None, asyncio.get_running_loop().time) as scheduler:
            for number in numbers:
                scheduler.add(Call(number, "wait", (number, [Reference(each) for each in needs[number]])))
                await asyncio.sleep(0)
            return dict(await scheduler.wait())

    found = run(main(), 60)
    assert sorted(called) == list(numbers) and early == []
    assert {number: each.value for number, each in found.items()} == {number: number for number in numbers}
