"""Play the Game of 24, or shop, with the trained models of examples/agent_patterns.

    python examples/run_agent_pattern.py game "2 8 8 13"
    python examples/run_agent_pattern.py shop "I need a red lamp which is soft and quiet, size tall, under 90 dollars."

Shows each plan as LLMCompiler's model wrote it, when each call began and ended, and the answer.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import click
from agent_patterns.catalogue import Catalogue
from agent_patterns.game_of_24 import CARDS, is_solution, numbers_of
from agent_patterns.models import PLANNER, SHOPPER, THINKER, open_trained
from agent_patterns.shop_agents import shop_compiler, shop_react
from agent_patterns.shop_tools import Shop
from agent_patterns.thought_tools import ThoughtTools
from agent_patterns.tree_of_thoughts import game_compiler
from train_language_models import run_command

from intaglio import Agent, AgentResult, UsageError


@click.group(help=(__doc__ or "").split("\n\n")[0])
def command() -> None:
    """Choose a pattern."""


@command.command("game")
@click.argument("numbers")
def game(numbers: str) -> None:
    """Make 24 of four numbers from 1 to 13."""
    try:
        read = numbers_of(numbers)
    except ValueError as error:
        raise UsageError(f"numbers {numbers!r:.80}: expected whole numbers with spaces between them.") from error
    if len(read) != 4 or not set(read) <= set(CARDS):
        raise UsageError(f"numbers {numbers!r:.80}: expected four from {CARDS[0]} to {CARDS[-1]}.")

    async def play() -> AgentResult:
        async with AsyncExitStack() as opened:
            planner = await opened.enter_async_context(open_trained(PLANNER))
            tools = ThoughtTools(await opened.enter_async_context(open_trained(THINKER)))
            return await game_compiler(planner, tools).run(numbers)

    result = asyncio.run(play())
    show(result)
    click.echo("It is a solution." if is_solution(result.answer, read) else "It is no solution.")


@command.command("shop")
@click.argument("wish")
@click.option("--latency", type=click.FloatRange(min=0), default=0.1, show_default=True, help="Seconds of each page.")
@click.option("--react", is_flag=True, help="One call after the other.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the catalogue.")
def shop(wish: str, latency: float, react: bool, seed: int) -> None:
    """Buy something."""

    async def buy() -> AgentResult:
        async with open_trained(SHOPPER) as model:
            visit = Shop(Catalogue(seed), latency)
            agent: Agent = shop_react(model, visit) if react else shop_compiler(model, visit)
            return await agent.run(wish)

    show(asyncio.run(buy()))


def show(result: AgentResult) -> None:
    """Print plans, calls and the answer."""
    for plan in result.plans:
        click.echo(plan)
    for call in result.observations.values():
        began = "never" if call.began is None else f"{1e3 * call.began:5.0f}"
        click.echo(f"call {call.number:2}: {began} to {1e3 * call.ended:5.0f} ms  {call.tool}: {call.text[:80]}")
    click.echo(f"{result.answer}\n{result.seconds:.2f} s, {result.usage.completion} tokens written")


if __name__ == "__main__":
    run_command("run_agent_pattern.py", command)
