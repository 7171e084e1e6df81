"""The shop: catalogue, reward, tools, training conversations, and end-to-end runs of the trained model."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import islice
from random import Random

import llguidance
import pytest
from agent_patterns.catalogue import SHOWN, Catalogue, Item
from agent_patterns.models import SHOPPER, open_trained
from agent_patterns.shop_agents import shop_compiler, shop_react
from agent_patterns.shop_conversations import shop_conversations
from agent_patterns.shop_tools import Page, Shop
from agent_patterns.shopping import TEMPLATES, Goal, Purchase, goals, reward

from intaglio.runtime.agents.loops.agent import AgentResult
from intaglio.runtime.agents.plan.grammar import plan_grammar, turn_grammar
from intaglio.runtime.agents.tools.tool import ToolError

LAMP = Item(1, "Alder", "lamp", ("quiet", "soft", "modern"), {"colour": ("red", "blue"), "size": ("tall", "wide")}, 80)
GOAL = Goal(LAMP, ("soft", "quiet"), "red", "tall", 90, TEMPLATES[0])
CATALOGUE = Catalogue(0)
WISHES = list(islice(goals(CATALOGUE, 1), 60))


def test_shop_depends_on_the_seed_alone() -> None:
    assert Catalogue(3, 200).items == Catalogue(3, 200).items != Catalogue(4, 200).items
    assert list(islice(goals(CATALOGUE, 2), 20)) == list(islice(goals(CATALOGUE, 2), 20))
    assert list(islice(shop_conversations(Random(5)), 6)) == list(islice(shop_conversations(Random(5)), 6))


def test_search_ranks_rare_words_first_and_shows_ten() -> None:
    item = CATALOGUE.items[7]
    found = CATALOGUE.search(item.title)
    assert len(found) == SHOWN
    assert item.title in {each.title for each in found}
    assert all(each.kind == item.kind for each in found[:1])
    assert CATALOGUE.search("submarine") == []


@pytest.mark.parametrize(
    ("purchase", "expected"),
    [
        (Purchase(LAMP, ("red", "tall")), 1.0),
        (Purchase(LAMP, ("red",)), 4 / 5),  # an option missing
        (Purchase(LAMP, ("red", "wide")), 4 / 5),  # a wrong option
        (Purchase(replace(LAMP, price=91), ("red", "tall")), 4 / 5),  # too expensive
        (Purchase(replace(LAMP, price=90), ("red", "tall")), 1.0),
        (Purchase(replace(LAMP, attributes=("soft",)), ("red", "tall")), 4 / 5),  # an attribute missing
        (Purchase(replace(LAMP, kind="rug"), ("red", "tall")), 0.5),  # same department
        (Purchase(replace(LAMP, kind="pan"), ("red", "tall")), 0.1),  # a word of the title
        (Purchase(replace(LAMP, kind="pan", brand="Birk", attributes=("padded",)), ("red", "tall")), 0.0),
        (None, 0.0),
    ],
)
def test_reward_is_the_share_of_matching_attributes(purchase: Purchase | None, expected: float) -> None:
    assert reward(GOAL, purchase) == pytest.approx(expected)


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_phrasing_names_all_wanted_attributes(template: str) -> None:
    goal = replace(GOAL, template=template)
    assert all(word in goal.instruction for word in ("soft", "quiet", "lamp", "red", "tall", "90"))
    assert sorted(goal.wanted.split()) == sorted(["soft", "quiet", "lamp", "red", "tall", "under", "90"])
    assert sorted(goal.options) == ["red", "tall"]


def test_every_instruction_can_be_fulfilled() -> None:
    for goal in WISHES:
        assert reward(goal, Purchase(goal.item, (goal.colour, goal.size))) == 1


def test_rank_chooses_the_page_with_most_wanted_attributes() -> None:
    pages = [
        Page(result=1, price=80, title="Alder lamp", attributes=["soft"], options={"colour": ["red"]}),
        Page(result=2, price=95, title="Alder lamp", attributes=["soft", "quiet"], options={"colour": ["red"]}),
        Page(result=3, price=80, title="Alder lamp", attributes=["soft", "quiet"], options={"colour": ["red"]}),
    ]
    shop = Shop(CATALOGUE)
    assert asyncio.run(shop.rank("soft quiet lamp red under 90", pages)) == 3
    assert asyncio.run(shop.rank("soft quiet lamp red under 95", pages)) == 2
    with pytest.raises(ToolError, match="no pages"):
        asyncio.run(shop.rank("soft lamp", []))


def test_one_item_is_bought_with_its_own_options() -> None:
    shop = Shop(CATALOGUE)
    item = CATALOGUE.search("soft lamp")[4]
    colour = item.options["colour"][0]
    asyncio.run(shop.search_items("soft lamp"))
    assert asyncio.run(shop.buy(5, f"{colour} invisible:\n1 Alder lamp")) == f"bought result 5 {colour}"
    assert shop.bought == Purchase(item, (colour,))
    with pytest.raises(ToolError, match="bought already"):
        asyncio.run(shop.buy(6, ""))
    with pytest.raises(ToolError, match="no result 1,"):
        asyncio.run(Shop(CATALOGUE).buy(1, ""))
    for number in (0, 11):
        with pytest.raises(ToolError, match=f"no result {number},"):
            asyncio.run(shop.open_item(number))


def test_second_search_continues_the_numbering() -> None:
    async def pages() -> tuple[str, Page, Page]:
        shop = Shop(CATALOGUE)
        await shop.search_items("soft lamp")
        return await shop.search_items("vintage rug"), await shop.open_item(1), await shop.open_item(11)

    text, first, second = asyncio.run(pages())
    assert text.startswith("vintage rug:\n11 ")
    assert first["title"] == CATALOGUE.search("soft lamp")[0].title
    assert second["title"] == CATALOGUE.search("vintage rug")[0].title


def test_training_conversations_match_the_grammars() -> None:
    tools = list(Shop(CATALOGUE).tools().values())
    for conversation in islice(shop_conversations(Random(3)), 8):
        known = 0
        for message in conversation.messages:
            if message.role != "assistant" or str(message.content).startswith(("Replan", "Answer")):
                continue
            text, acting = str(message.content), str(conversation.messages[0].content).startswith("Buy")
            source = (turn_grammar if acting else plan_grammar)(tools, range(1, known + 1))
            grammar = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0)
            assert grammar.try_consume_tokens(list(text.encode())) == len(text.encode())
            assert grammar.is_accepting()
            known += 1 if acting else text.count("\n")


@pytest.mark.proof
def test_benchmark_instructions_are_not_trained_on() -> None:
    conversations = islice(shop_conversations(Random(0)), 200)
    trained = {str(each.messages[1].content).removeprefix("Question: ") for each in conversations}
    assert not trained & {goal.instruction for goal in WISHES}


def test_planner_and_react_buy_the_same_and_the_plan_opens_pages_in_parallel() -> None:
    async def buy() -> list[tuple[AgentResult, Shop, float]]:
        done = []
        async with open_trained(SHOPPER) as model:
            for agent in (shop_react, shop_compiler):
                shop, began = Shop(CATALOGUE, 0.1), time.perf_counter()
                result = await agent(model, shop).run(WISHES[0].instruction)
                done.append((result, shop, time.perf_counter() - began))
        return done

    (acted, visited, slow), (planned, shop, fast) = asyncio.run(buy())
    assert shop.bought == visited.bought is not None
    assert reward(WISHES[0], shop.bought) > 0.5
    assert planned.answer == acted.answer
    assert (len(planned.plans), len(acted.plans)) == (2, SHOWN + 4)
    opened = [each for each in planned.observations.values() if each.tool == "open_item"]
    assert len(opened) == SHOWN
    assert max(each.began or 0 for each in opened) - min(each.began or 0 for each in opened) < 0.1 * (SHOWN - 1)
    assert fast < slow
