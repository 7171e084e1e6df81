"""Runs of agents for tests: tools that record their calls, the events, and a check for leftovers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from scripted_model import Changed

from intaglio.runtime.agents.loops.agent import Agent, AgentResult
from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.run.events import AnyEvent
from intaglio.runtime.agents.tools.tool import Tool, ToolError

Kind = TypeVar("Kind")
QUESTION = "How much larger is the first?"


def tool_of(function: Callable[..., Awaitable[Any] | Any], name: str | None = None, **properties: Any) -> Tool:
    """A tool with these parameters, all required."""
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Tool(name or function.__name__, f"The tool {name or function.__name__}.", schema, function)


def tools(seconds: float = 0.2) -> dict[str, Tool]:
    """`search(text)` and `add(left, right)` take a while, `fail()` raises, `echo(value)` returns its argument."""

    async def search(text: str) -> str:
        await asyncio.sleep(seconds)
        return f"found {text}"

    async def add(left: float, right: float) -> float:
        await asyncio.sleep(seconds)
        return left + right

    async def fail() -> None:
        raise ToolError("the disk is full")

    async def echo(value: Any) -> Any:
        return value

    number = {"type": "number"}
    made = [
        tool_of(search, text={"type": "string"}),
        tool_of(add, left=number, right=number),
        tool_of(fail),
        tool_of(echo, value={}),
    ]
    return {tool.name: tool for tool in made}


def small_tools() -> dict[str, Tool]:
    """Tools whose calls a random model completes soon."""

    async def returns(**arguments: Any) -> Any:
        await asyncio.sleep(0)
        return arguments

    def named(name: str, **properties: Any) -> Tool:
        return tool_of(returns, name, **properties)

    word, place = {"type": "string", "maxLength": 6}, {"type": "integer", "minimum": 0, "maximum": 99}
    made = [
        *(named("now"), named("look", word=word), named("pick", which={"enum": ["first", "last", 3]}, place=place)),
        named("both", values={"type": "array", "items": word, "maxItems": 2}),
    ]
    return {tool.name: tool for tool in made}


class Events:
    """Records the events of a run."""

    def __init__(self) -> None:
        self.all: list[AnyEvent] = []

    def __call__(self, event: AnyEvent) -> None:
        """Record an event."""
        self.all.append(event)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The events of one kind."""
        return [each for each in self.all if isinstance(each, kind)]

    def one(self, kind: type[Kind], **fields: Any) -> Kind:
        """The only event of one kind with these fields."""
        (found,) = [each for each in self.of(kind) if all(getattr(each, name) == fields[name] for name in fields)]
        return found


async def answered(agent: Agent, events: Events | None = None, question: str = QUESTION) -> AgentResult:
    """Run an agent, and check that it leaves no task behind."""
    before = asyncio.all_tasks()
    try:
        return await agent.run(question, events)
    finally:
        assert asyncio.all_tasks() == before


def children() -> set[int]:
    """The child processes that have not been waited for."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(child) for file in files for child in file.read_text().split()}


@contextmanager
def nothing_left(processes: bool = True) -> Iterator[None]:
    """Check that the block leaves no threads and no processes."""
    threads, before = set(threading.enumerate()), children()
    yield
    assert set(threading.enumerate()) <= threads
    assert not processes or children() <= before


def statuses(result: AgentResult) -> Mapping[int, str]:
    """The outcome of each call of a run."""
    return {number: each.status for number, each in sorted(result.observations.items())}


def check_plans(result: AgentResult, model: Changed, known: Mapping[str, Tool]) -> None:
    """Check that every plan parses without an error, and completely unless a limit truncated it."""
    numbers: list[int] = []
    for plan, end in zip(result.plans, model.ends[::2], strict=True):
        parser = PlanParser(known, numbers)
        calls = [call for char in plan for call in parser.push(char)]
        if end.finish_reason != "length":
            assert parser.finish() == [] and parser.join is not None
        numbers += [call.number for call in calls]
    assert sorted(result.observations) == numbers
