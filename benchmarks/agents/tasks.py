"""What does the call scheduler cost for each task, and how close to its critical path does a plan run?

    python -m benchmarks.agents.tasks [--rounds N] [--json]

Graphs of 1,000, 10,000 and 20,000 tasks whose tools return at once: a chain, independent tasks, and a random graph with
up to three inputs for each task. `microseconds` is the scheduler's time for each task, the least of the rounds, with an
observer; the peer is `asyncio.TaskGroup` with one task for each call, which awaits its inputs and the same tool, in the
same run. The goal is 1 ms. `bytes` are the most that each task takes at a time, by tracemalloc; from 10,000 to 20,000
tasks they should stay the same.

Then random graphs of 200 tools that take 20 ms each, async ones and ones that block their thread: the time of the whole
over the limit, the time that as many calls one after the other take as are on the longest path, in the same run. The
goal is 1.05. The loop runs between the calls of the plan, as while a model writes it. A task has its inputs among the
100 before it, where about 20 end at the same moment and start others, or among the 10 before it.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from intaglio.display.progress import step
from intaglio.runtime.agents.loops.agent import AgentLimits
from intaglio.runtime.agents.loops.call_scheduler import CallScheduler
from intaglio.runtime.agents.plan.plan import Call, Reference
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.validation.reports.report import processor

SIZES = (1_000, 10_000, 20_000)
GOAL = 1000.0  # microseconds for each task
SLEEP = 0.02  # seconds of a tool that takes time
SLEEPING = 200  # tasks of that graph
PATH_GOAL = 1.05
PARAMETERS = {"type": "object", "properties": {"inputs": {"type": "array"}}}
Graph = Sequence[Sequence[int]]  # the inputs of the tasks 1, 2, ...


class Cost(msgspec.Struct):
    """A graph of tools that return at once."""

    graph: str
    tasks: int
    microseconds: float  # for each task
    peer_microseconds: float
    ratio: float  # ours over the peer's
    of_goal: float  # ours over the goal
    bytes: float  # for each task


class Path(msgspec.Struct):
    """A graph of tools that take time."""

    tools: str
    tasks: int
    longest: int  # tasks of the longest path
    seconds: float  # the least of the rounds, as are the others: other programs only add to them
    limit_seconds: float  # of the longest path alone, without the scheduler
    ratio: float  # of the two
    of_nominal: float  # the seconds over those that the tools of the longest path ask for
    goal: float = PATH_GOAL


class Result(msgspec.Struct):
    """All that was measured."""

    processor: str
    costs: list[Cost]
    growth: dict[str, float]  # by graph: bytes for each of 20,000 tasks over those for each of 10,000
    paths: list[Path]


def chain(size: int) -> Graph:
    """Each task needs the one before."""
    return [[], *([number] for number in range(1, size))]


def wide(size: int) -> Graph:
    """No task needs another."""
    return [[]] * size


def randomly(size: int, reach: int = 100) -> Graph:
    """Each task needs up to three of the `reach` before it."""
    generator = random.Random(size)
    return [
        generator.sample(earlier, min(len(earlier), generator.randint(0, 3)))
        for earlier in (range(max(1, number - reach), number) for number in range(1, size + 1))
    ]


GRAPHS: dict[str, Callable[[int], Graph]] = {"chain": chain, "wide": wide, "random": randomly}


async def at_once(inputs: list[int]) -> int:
    """A tool that takes no time."""
    return len(inputs)


async def sleeps(inputs: list[int]) -> int:
    """A tool that waits in the loop."""
    await asyncio.sleep(SLEEP)
    return len(inputs)


def blocks(inputs: list[int]) -> int:
    """A tool that waits in its thread."""
    time.sleep(SLEEP)
    return len(inputs)


SLEEPERS: dict[str, Callable[[list[int]], Any]] = {"async": sleeps, "threads": blocks}


def calls(graph: Graph) -> list[Call]:
    """The graph as a plan."""
    return [Call(number, "tool", ([Reference(each) for each in needs],)) for number, needs in enumerate(graph, 1)]


async def ours(plan: Sequence[Call], function: Callable[..., Any], streamed: bool = False) -> None:
    """Run a plan with the scheduler; `streamed`: the loop runs between its calls, as while a model writes it."""
    limits = AgentLimits(max_calls=len(plan), parallel=SLEEPING)
    tools = {"tool": Tool("tool", "", PARAMETERS, function)}
    async with CallScheduler(tools, limits, lambda event: None, time.monotonic) as scheduler:
        for call in plan:
            scheduler.add(call)
            if streamed:
                await asyncio.sleep(0)
        ended = await scheduler.wait()
    assert all(each.status == "done" for each in ended.values()) and len(ended) == len(plan)


async def theirs(graph: Graph) -> None:
    """Run a graph with one asyncio task for each call: no limits, no events, no failures but of the whole."""
    tasks: list[asyncio.Task[int]] = []

    async def run(needs: Sequence[int]) -> int:
        return await at_once([await tasks[number - 1] for number in needs])

    async with asyncio.TaskGroup() as group:
        for needs in graph:
            tasks.append(group.create_task(run(needs)))


def seconds_of(run: Callable[[], Any]) -> float:
    """Seconds of one run in a fresh loop, without those of the garbage before it."""
    gc.collect()
    began = time.perf_counter()
    asyncio.run(run())
    return time.perf_counter() - began


def cost(name: str, size: int, rounds: int) -> Cost:
    """Measure one graph, both ways in turns."""
    graph = GRAPHS[name](size)
    plan = calls(graph)
    pairs = [(seconds_of(lambda: ours(plan, at_once)), seconds_of(lambda: theirs(graph))) for _ in range(rounds)]
    mine, peer = (1e6 * min(each) / size for each in zip(*pairs, strict=True))
    gc.collect()
    tracemalloc.start()
    asyncio.run(ours(plan, at_once))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Cost(name, size, mine, peer, mine / peer, mine / GOAL, most / size)


def path(name: str, reach: int, rounds: int) -> Path:
    """Measure tools that take time, and their longest path, in turns."""
    function = SLEEPERS[name]
    graph = randomly(SLEEPING, reach)
    depths: list[int] = []
    for needs in graph:
        depths.append(1 + max((depths[number - 1] for number in needs), default=0))
    plan, longest = calls(graph), max(depths)

    async def alone() -> None:
        for _ in range(longest):
            if asyncio.iscoroutine(value := function([])):
                await value

    pairs = [(seconds_of(lambda: ours(plan, function, streamed=True)), seconds_of(alone)) for _ in range(rounds)]
    seconds, limit = map(min, zip(*pairs, strict=True))
    return Path(name, SLEEPING, longest, seconds, limit, seconds / limit, seconds / (longest * SLEEP))


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--rounds", default=5, show_default=True, help="Measurements of each.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(rounds: int, as_json: bool) -> None:
    """Measure and print."""
    with step("tools that return at once"):
        costs = [cost(name, size, rounds) for name in GRAPHS for size in SIZES]
    with step("tools that take time"):
        paths = [path(name, reach, rounds) for name in SLEEPERS for reach in (100, 10)]
    sizes = {(each.graph, each.tasks): each.bytes for each in costs}
    growth = {name: sizes[name, SIZES[2]] / sizes[name, SIZES[1]] for name in GRAPHS}
    result = Result(processor(), costs, growth, paths)
    print(msgspec.json.encode(result).decode() if as_json else table(result))


def table(result: Result) -> str:
    """For people."""
    return "\n".join(
        [
            result.processor,
            *(
                f"{each.graph:6} {each.tasks:6} tasks: {each.microseconds:5.1f} us a task, {each.of_goal:.3f} of the "
                f"goal; TaskGroup {each.peer_microseconds:4.1f} us, ratio {each.ratio:.1f}; {each.bytes:5.0f} bytes"
                for each in result.costs
            ),
            *(
                f"{name:6} bytes for each of {SIZES[2]} tasks over those of {SIZES[1]}: {growth:.2f}"
                for name, growth in result.growth.items()
            ),
            *(
                f"{each.tools:7} {each.tasks} tasks of {1e3 * SLEEP:.0f} ms, {each.longest} on the longest path: "
                f"{each.seconds:.3f} s, {each.ratio:.3f} times the path alone (goal {each.goal}), "
                f"{each.of_nominal:.3f} times {each.longest * SLEEP:.2f} s"
                for each in result.paths
            ),
        ]
    )


if __name__ == "__main__":
    main()
