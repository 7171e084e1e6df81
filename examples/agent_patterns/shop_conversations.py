"""Conversations of both ways to shop, to train on: whole ones of the planner, and of ReAct turn by turn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from random import Random

from agent_models.conversation import Conversation

from agent_patterns.catalogue import Catalogue
from agent_patterns.shop_agents import shop_compiler, shop_react
from agent_patterns.shop_tools import Shop
from agent_patterns.shopping import Goal, goals
from agent_patterns.teacher import Teacher, first_number, listed, plan, text
from intaglio import Message

REPLAN = "Replan: open the items."
NOTHING = "Answer: nothing found."
FOUND = re.compile(r"^(\d+) [A-Z]", re.MULTILINE)
BOUGHT = re.compile(r"bought result .*")
GOALS_OF_EACH = 20  # of a catalogue


def shop_conversations(random: Random) -> Iterator[Conversation]:
    """Yield conversations without end, two of LLMCompiler, then one of ReAct, in ever new catalogues."""
    while True:
        catalogue = Catalogue(random.randrange(1 << 30), random.choice([100, 300, 2000]))
        for goal in islice(goals(catalogue, random.randrange(1 << 30)), GOALS_OF_EACH):
            way = random.choice(["plan", "plan", "act"])
            teacher = Teacher(partial(planned if way == "plan" else acted, goal))
            agent = (shop_compiler if way == "plan" else shop_react)(teacher, Shop(catalogue))
            asyncio.run(agent.run(goal.instruction))
            yield teacher.conversations[-1]


def planned(goal: Goal, messages: Sequence[Message]) -> str:
    """Return the next output of the planner, or of the joiner."""
    last = text(messages[-1])
    if last.startswith("$1"):
        return REPLAN if FOUND.search(last) else NOTHING
    if last.startswith("$"):
        return answer(last)
    if len(messages) == 2:
        return plan([_search(goal)], 1)
    first, items = first_number(messages[-1]), FOUND.findall(text(messages[-3]))
    pages = range(first, first + len(items))
    calls = [*(f"open_item({item})" for item in items), _rank(pages), _buy(pages.stop)]
    return plan(calls, first)


def acted(goal: Goal, messages: Sequence[Message]) -> str:
    """Return the next turn of ReAct."""
    turn = len(messages) // 2
    if turn == 1:
        return f"1. {_search(goal)}"
    items = FOUND.findall(text(messages[3]))
    if not items:
        return NOTHING
    if turn <= len(items) + 1:
        return f"{turn}. open_item({items[turn - 2]})"
    if turn == len(items) + 2:
        return f"{turn}. {_rank(range(2, turn))}"
    return f"{turn}. {_buy(turn - 1)}" if turn == len(items) + 3 else answer(text(messages[-1]))


def answer(results: str) -> str:
    """Return the answer after a purchase."""
    found = BOUGHT.search(results)
    return f"Answer: {found[0]}" if found else "Answer: nothing bought."


def _search(goal: Goal) -> str:
    return f'search_items("{goal.wanted}")'


def _rank(pages: range) -> str:
    return f"rank($1, {listed(pages)})"


def _buy(ranked: int) -> str:
    return f"buy(${ranked}, $1)"
