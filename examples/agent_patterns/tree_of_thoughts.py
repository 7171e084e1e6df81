"""Tree of Thoughts for the Game of 24, one request after the other (Yao et al. 2023), and by LLMCompiler."""

from __future__ import annotations

from collections.abc import Sequence

from agent_patterns.game_of_24 import Numbers, is_solution, text_of
from agent_patterns.thought_tools import ThoughtTools
from intaglio import AgentLimits
from intaglio.runtime import LLMCompiler, Model

DEPTHS = 3  # steps from four numbers to one
INSTRUCTIONS = "Plan the Game of 24."
LIMITS = AgentLimits(max_replans=DEPTHS - 1)


async def tree_of_thoughts(tools: ThoughtTools, numbers: Numbers) -> str:
    """Return the steps to 24, or "" if none were found: a breadth-first search that awaits each call of a tool."""
    game, kept = text_of(numbers), [""]
    for _ in range(DEPTHS):
        proposed = [await tools.thought_proposer(game, kept, place) for place in range(1, len(kept) + 1)]
        values = [await tools.state_evaluator(game, states) for states in proposed]
        kept = await tools.top_k_select(game, proposed, values)
    return solution(kept, numbers)


def game_compiler(model: Model, tools: ThoughtTools) -> LLMCompiler:
    """Return LLMCompiler with the tools; its question is the numbers. A plan for each depth, then it replans."""
    return LLMCompiler(model, tools.tools(), LIMITS, instructions=INSTRUCTIONS)


def solution(candidates: Sequence[str], numbers: Numbers) -> str:
    """Return the first that is a solution by the rules, or ""."""
    return next((each for each in candidates if is_solution(each, numbers)), "")
