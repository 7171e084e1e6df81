"""Results for other tools: the prompt holds no more of them than their tool allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from intaglio.errors import UsageError
from intaglio.runtime.agents.loops.agent import AgentLimits
from intaglio.runtime.agents.loops.call_scheduler import CallScheduler
from intaglio.runtime.agents.loops.function_calling import FunctionCalling
from intaglio.runtime.agents.loops.prompts import result_line
from intaglio.runtime.agents.models.model import End, ModelPiece, ModelRequest, Usage
from intaglio.runtime.agents.plan.plan import Call
from intaglio.runtime.agents.run.observation import Observation
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.requests.message import FunctionCall, ToolCall

TOOL = Tool("letters", "", {"type": "object"}, lambda: "abcdef", shown=2)


def observed(tool: Tool) -> Observation:
    async def run() -> Observation:
        async with CallScheduler({tool.name: tool}, AgentLimits(), None, lambda: 0.0) as scheduler:
            scheduler.add(Call(1, tool.name))
            return (await scheduler.wait())[1]

    return asyncio.run(run())


def test_result_in_the_prompt_is_limited_by_its_tool() -> None:
    observation = observed(TOOL)
    assert observation.value == "abcdef"
    assert result_line(observation, 100) == "$1 = ab… (4 characters more)"
    assert result_line(observation, 1) == "$1 = a… (5 characters more)"
    assert result_line(observed(replace(TOOL, shown=0)), 100) == "$1 = … (6 characters more)"
    assert result_line(observed(replace(TOOL, shown=None)), 100) == "$1 = abcdef"


class CallsOnce:
    """A model that calls the tool, and answers with the result in its prompt."""

    name, constrained = "scripted", False

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPiece]]:
        async def pieces() -> AsyncIterator[ModelPiece]:
            last = request.messages[-1]
            yield str(last.content) if last.role == "tool" else ToolCall(FunctionCall("letters", "{}"), "1", "function")
            yield End(Usage(), "stop")

        yield pieces()


def test_function_calling_limits_results_too() -> None:
    result = asyncio.run(FunctionCalling(CallsOnce(), {"letters": TOOL}).run("Which letters?"))
    assert result.answer == "ab… (4 characters more)"


def test_errors_are_shown_even_if_results_are_not() -> None:
    def fails() -> str:
        raise ValueError("no letters today")

    assert "no letters today" in result_line(observed(replace(TOOL, function=fails, shown=0)), 100)


def test_negative_shown_is_rejected() -> None:
    with pytest.raises(UsageError, match="shown -1, expected 0 characters or more"):
        replace(TOOL, shown=-1)
