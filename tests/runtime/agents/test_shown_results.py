"""Results that are for other tools: models read no more of them than their tool says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from intaglio.errors import UsageError
from intaglio.runtime.agents.agent import AgentLimits
from intaglio.runtime.agents.function_calling import FunctionCalling
from intaglio.runtime.agents.model import End, ModelPiece, ModelRequest, Usage
from intaglio.runtime.agents.observation import Observation
from intaglio.runtime.agents.plan import Call
from intaglio.runtime.agents.prompts import result_line
from intaglio.runtime.agents.task_fetching import TaskFetchingUnit
from intaglio.runtime.agents.tool import Tool
from intaglio.runtime.generation.message import FunctionCall, ToolCall

TOOL = Tool("letters", "", {"type": "object"}, lambda: "abcdef", shown=2)


def observed(tool: Tool) -> Observation:
    async def run() -> Observation:
        async with TaskFetchingUnit({tool.name: tool}, AgentLimits(), None, lambda: 0.0) as unit:
            unit.add(Call(1, tool.name))
            return (await unit.wait())[1]

    return asyncio.run(run())


def test_a_model_reads_no_more_of_a_result_than_its_tool_says() -> None:
    observation = observed(TOOL)
    assert observation.value == "abcdef"
    assert result_line(observation, 100) == "$1 = ab… (4 characters more)"
    assert result_line(observation, 1) == "$1 = a… (5 characters more)"
    assert result_line(observed(replace(TOOL, shown=0)), 100) == "$1 = … (6 characters more)"
    assert result_line(observed(replace(TOOL, shown=None)), 100) == "$1 = abcdef"


class CallsOnce:
    """A model that calls the tool, and answers with what it then reads."""

    name, constrained = "scripted", False

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPiece]]:
        async def pieces() -> AsyncIterator[ModelPiece]:
            last = request.messages[-1]
            yield str(last.content) if last.role == "tool" else ToolCall(FunctionCall("letters", "{}"), "1", "function")
            yield End(Usage(), "stop")

        yield pieces()


def test_a_model_that_calls_functions_reads_no_more_either() -> None:
    result = asyncio.run(FunctionCalling(CallsOnce(), {"letters": TOOL}).run("Which letters?"))
    assert result.answer == "ab… (4 characters more)"


def test_errors_are_shown_though_results_are_not() -> None:
    def fails() -> str:
        raise ValueError("no letters today")

    assert "no letters today" in result_line(observed(replace(TOOL, function=fails, shown=0)), 100)


def test_fewer_than_no_characters_are_refused() -> None:
    with pytest.raises(UsageError, match="shown -1, expected 0 characters or more"):
        replace(TOOL, shown=-1)
