"""The loops by their names: LLMCompiler, ReAct, and function calling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from intaglio.errors import UsageError
from intaglio.runtime.agents.loops.agent import Agent, AgentLimits
from intaglio.runtime.agents.loops.function_calling import FunctionCalling
from intaglio.runtime.agents.loops.llm_compiler import LLMCompiler
from intaglio.runtime.agents.loops.prompts import PlanExample
from intaglio.runtime.agents.loops.react import ReAct
from intaglio.runtime.agents.models.model import Model
from intaglio.runtime.agents.tools.tool import Tool

Planner = Literal["llmcompiler", "react", "function-calling"]
PLANNERS: tuple[Planner, ...] = get_args(Planner)


def agent_of(
    planner: Planner,
    model: Model,
    tools: Mapping[str, Tool],
    limits: AgentLimits,
    examples: Sequence[PlanExample] = (),
    streaming: bool = True,
    grammar: bool | None = None,
) -> Agent:
    """Return the loop named `planner`; `grammar`: constrain its texts, if the model can; None: True where it has one.

    Raises `UsageError` for an unknown name, no tools, and for options that the planner does not have.
    """
    if planner not in PLANNERS:
        raise UsageError(f"planner {planner!r:.80}: expected one of {', '.join(PLANNERS)}.")
    if not tools:
        raise UsageError("an agent has no tools, expected at least one.")
    if planner == "llmcompiler":
        return LLMCompiler(model, tools, limits, examples, streaming=streaming, constrained=grammar is not False)
    for name, given in (("examples", bool(examples)), ("no streaming", not streaming)):
        if given:
            raise UsageError(f"{name}: only for planner llmcompiler, got {planner!r}. Leave it out.")
    if planner == "react":
        return ReAct(model, tools, limits, constrained=grammar is not False)
    if grammar is not None:
        raise UsageError(f"grammar: only for planners llmcompiler and react, got {planner!r}. Leave it out.")
    return FunctionCalling(model, tools, limits)
