"""How much faster is the Game of 24 with replanning than Tree of Thoughts one request after the other?

    python -m benchmarks.agents.game_of_24 [--games N] [--json]

Both ways have the same tools, thought_proposer, state_evaluator and top_k_select, whose model runs in the engine
(examples/agent_patterns). Tree of Thoughts awaits each call; LLMCompiler plans the calls of a depth, which share the
rows of the engine's batch, and replans after each depth, with a model of its own. The games are not in the training
data; the two ways alternate in going first. A game counts as solved if the rules say so. The goal is at least the same
success and a ratio of 2. Tokens of both models are counted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click
import msgspec

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from agent_patterns.game_of_24 import Numbers, games, is_solution, text_of
from agent_patterns.models import PLANNER, THINKER, open_trained
from agent_patterns.thought_tools import ThoughtTools
from agent_patterns.tree_of_thoughts import game_compiler, tree_of_thoughts

from benchmarks.shared.serving import verdict
from intaglio.display.progress import track
from intaglio.runtime.agents.models.model import Model, Usage
from intaglio.validation.reports.report import processor

GOAL = 2.0
Play = Callable[[Numbers], Awaitable[tuple[str, Usage, ThoughtTools]]]


class Method(msgspec.Struct):
    """One way to play."""

    name: str
    solved: int = 0
    seconds: float = 0.0
    calls: int = 0  # requests to models
    prompt_tokens: int = 0
    tokens: int = 0  # that the models wrote
    proposed: int = 0
    dropped: int = 0  # proposals that broke the rules


class Result(msgspec.Struct):
    """All that was measured."""

    processor: str
    games: int
    methods: list[Method]
    ratio: float  # the first method's seconds over the second's
    verdicts: list[str]


async def measured(numbers: Numbers, play: Play, method: Method) -> None:
    """Play one game, and add it up."""
    began = time.perf_counter()
    answer, usage, tools = await play(numbers)
    method.seconds += time.perf_counter() - began
    method.solved += is_solution(answer, numbers)
    method.calls += usage.calls
    method.prompt_tokens += usage.prompt
    method.tokens += usage.completion
    method.proposed += tools.proposed
    method.dropped += tools.dropped


def ways(planner: Model, thinker: Model) -> dict[str, Play]:
    """Return the two ways to play, the peer first."""

    async def sequential(numbers: Numbers) -> tuple[str, Usage, ThoughtTools]:
        tools = ThoughtTools(thinker)
        return await tree_of_thoughts(tools, numbers), tools.usage, tools

    async def compiled(numbers: Numbers) -> tuple[str, Usage, ThoughtTools]:
        tools = ThoughtTools(thinker)
        result = await game_compiler(planner, tools).run(text_of(numbers))
        return result.answer, result.usage + tools.usage, tools

    return {"Tree of Thoughts": sequential, "LLMCompiler": compiled}


async def measure(chosen: Sequence[Numbers], warm_up: Numbers) -> Result:
    """Play all games both ways."""
    async with AsyncExitStack() as opened:
        planner, thinker = [await opened.enter_async_context(open_trained(name)) for name in (PLANNER, THINKER)]
        plays = ways(planner, thinker)
        methods = {name: Method(name) for name in plays}
        for name in plays:  # compiles the grammars of the plans
            await measured(warm_up, plays[name], Method(name))
        for number, numbers in enumerate(track(chosen, "games")):
            for name in list(plays)[:: 1 if number % 2 else -1]:
                await measured(numbers, plays[name], methods[name])
    peer, ours = methods.values()
    ratio = peer.seconds / ours.seconds
    verdicts = [
        verdict("games solved", ours.solved, peer.solved),
        verdict("times as fast as Tree of Thoughts", ratio, GOAL),
    ]
    return Result(processor(), len(chosen), [peer, ours], ratio, verdicts)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--games", "count", type=click.IntRange(1, 150), default=50, show_default=True, help="Games to play.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(count: int, as_json: bool) -> None:
    """Measure and print."""
    training, held_out = games()
    result = asyncio.run(measure(held_out[:count], training[0]))
    print(msgspec.json.encode(result).decode() if as_json else table(result))


def table(result: Result) -> str:
    """For people."""
    rows = [
        f"{each.name:16} {each.solved}/{result.games} solved, {each.seconds / result.games:.2f} s a game, "
        f"{each.tokens / result.games:.0f} tokens written and {each.prompt_tokens / result.games:.0f} read, "
        f"{each.calls / result.games:.1f} requests, {each.dropped}/{each.proposed} proposals dropped"
        for each in result.methods
    ]
    return "\n".join([result.processor, *rows, *result.verdicts])


if __name__ == "__main__":
    main()
