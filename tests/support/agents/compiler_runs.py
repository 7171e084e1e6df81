"""Runs of LLMCompiler with a scripted model, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_checks import Events, answered, tools
from event_loops import run_in_virtual_time
from scripted_model import Answer, ScriptedModel

from intaglio.runtime.agents.loops.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.loops.llm_compiler import LLMCompiler

PLAN = 'Thought: both\n1. search("Asia")\n2. search("Africa")\n3. echo("$1, $2")\n4. join()'
FOUND = {1: "found Asia", 2: "found Africa", 3: "found Asia, found Africa"}
Ran = tuple[AgentResult, ScriptedModel, Events]


def ran(*answers: Answer, model: Mapping[str, Any] | None = None, takes: float = 0.2, **options: Any) -> Ran:
    """Answer the question; the options of limits are keywords."""
    limits = {name: options.pop(name) for name in list(options) if name in AgentLimits.__struct_fields__}
    scripted, events = ScriptedModel(list(answers), **(model or {})), Events()

    async def main() -> AgentResult:
        agent = LLMCompiler(scripted, options.pop("tools", None) or tools(takes), AgentLimits(**limits), **options)
        result = await answered(agent, events)
        assert scripted.open == 0
        return result

    return run_in_virtual_time(main()), scripted, events


def values(result: AgentResult) -> dict[int, Any]:
    return {number: each.value for number, each in result.observations.items() if each.status == "done"}
