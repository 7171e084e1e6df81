"""How much faster does LLMCompiler shop than ReAct, and are its purchases as good?

    python -m benchmarks.agents.shop [--goals N] [--latency SECONDS] [--json]

An interactive shop in the manner of WebShop (examples/agent_patterns): 2,000 items, of which a search shows ten, and a
page for each. Every page takes as long as `--latency`, by default 100 ms, as pages of the web do. Both agents have the
same tools and the same model in our engine; ReAct opens the ten items one after the other, LLMCompiler all at a time.
The wishes and the catalogue are not in the training data. `score` is the mean reward (see shopping.py), `success` the
part of the wishes with a reward of 1. The goal is at least ReAct's score and a ratio of 2.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click
import msgspec

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from agent_patterns.catalogue import Catalogue
from agent_patterns.models import SHOPPER, open_trained
from agent_patterns.shop_agents import shop_compiler, shop_react
from agent_patterns.shop_tools import Shop
from agent_patterns.shopping import Goal, goals, reward

from benchmarks.shared.serving import verdict
from intaglio.display.progress import track
from intaglio.runtime.agents.models.model import Model
from intaglio.validation.reports.report import processor

GOAL = 2.0
CATALOGUE, GOALS = 0, 1  # seeds
AGENTS = {"ReAct": shop_react, "LLMCompiler": shop_compiler}


class Method(msgspec.Struct):
    """One agent."""

    name: str
    score: float = 0.0
    success: float = 0.0
    seconds: float = 0.0  # of a wish
    opened: float = 0.0  # pages of items, of a wish
    calls: float = 0.0  # requests to the model
    prompt_tokens: float = 0.0
    tokens: float = 0.0  # written

    def add(self, other: Method, part: float) -> None:
        """Add another one's numbers, weighted."""
        for name in self.__struct_fields__[1:]:
            setattr(self, name, getattr(self, name) + part * getattr(other, name))


class Result(msgspec.Struct):
    """All that was measured."""

    processor: str
    goals: int
    latency: float
    methods: list[Method]
    ratio: float  # ReAct's seconds over LLMCompiler's
    verdicts: list[str]


async def visit(name: str, model: Model, catalogue: Catalogue, goal: Goal, latency: float) -> Method:
    """Let an agent shop once."""
    shop = Shop(catalogue, latency)
    result = await AGENTS[name](model, shop).run(goal.instruction)
    earned = reward(goal, shop.bought)
    usage = result.usage
    return Method(
        name, earned, float(earned == 1), result.seconds, shop.opened, usage.calls, usage.prompt, usage.completion
    )


async def measure(chosen: Sequence[Goal], catalogue: Catalogue, latency: float) -> Result:
    """Let both agents fulfil each wish."""
    methods = {name: Method(name) for name in AGENTS}
    async with open_trained(SHOPPER) as model:
        for name in AGENTS:  # compiles the grammars
            await visit(name, model, catalogue, next(goals(catalogue, GOALS + 1)), 0)
        for number, goal in enumerate(track(chosen, "wishes")):
            for name in list(AGENTS)[:: 1 if number % 2 else -1]:
                methods[name].add(await visit(name, model, catalogue, goal, latency), 1 / len(chosen))
    peer, ours = methods.values()
    ratio = peer.seconds / ours.seconds
    verdicts = [verdict("score", ours.score, peer.score), verdict("times as fast as ReAct", ratio, GOAL)]
    return Result(processor(), len(chosen), latency, [peer, ours], ratio, verdicts)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--goals", "count", type=click.IntRange(min=1), default=50, show_default=True, help="Wishes.")
@click.option("--latency", type=click.FloatRange(min=0), default=0.1, show_default=True, help="Seconds of each page.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(count: int, latency: float, as_json: bool) -> None:
    """Measure and print."""
    catalogue = Catalogue(CATALOGUE)
    result = asyncio.run(measure(list(islice(goals(catalogue, GOALS), count)), catalogue, latency))
    print(msgspec.json.encode(result).decode() if as_json else table(result))


def table(result: Result) -> str:
    """For people."""
    rows = [
        f"{each.name:12} score {each.score:.3f}, success {each.success:.0%}, {each.seconds:.2f} s a wish, "
        f"{each.opened:.1f} items opened, {each.tokens:.0f} tokens written and {each.prompt_tokens:.0f} read, "
        f"{each.calls:.1f} requests"
        for each in result.methods
    ]
    title = f"{result.processor}, {result.goals} wishes, {1e3 * result.latency:.0f} ms a page"
    return "\n".join([title, *rows, *result.verdicts])


if __name__ == "__main__":
    main()
