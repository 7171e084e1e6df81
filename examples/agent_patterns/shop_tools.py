"""The tools of the shop: search, open a page, compare pages, buy."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import TypedDict

from agent_patterns.catalogue import Catalogue
from agent_patterns.shopping import Purchase
from intaglio.runtime.agents.tool import Tool, ToolError
from intaglio.runtime.agents.tool_from_function import tool

PAGE_SHOWN = 28  # characters of a page that the model reads: `rank` compares pages, as a small model cannot
LIMIT = re.compile(r"\bunder (\d+)")


class Page(TypedDict):
    """The page of an item."""

    item: int
    price: int
    title: str
    attributes: list[str]
    options: dict[str, list[str]]


class Shop:
    """One customer's visit: at most one purchase. Every page takes `latency` seconds, as pages of the web do."""

    def __init__(self, catalogue: Catalogue, latency: float = 0.0):
        self._catalogue, self._latency = catalogue, latency
        self.bought: Purchase | None = None
        self.opened = 0  # pages of items

    def tools(self) -> dict[str, Tool]:
        """Return the tools."""
        page = replace(tool(self.open_item), shown=PAGE_SHOWN)
        return {each.name: each for each in (tool(self.search_items), page, tool(self.rank), tool(self.buy))}

    async def search_items(self, query: str) -> str:
        """Return the ten best items: number, title and price of each.

        query: words of the title
        """
        await asyncio.sleep(self._latency)
        found = self._catalogue.search(query)
        return "\n".join(f"{item.number} {item.title}, {item.price} dollars" for item in found) or "nothing found"

    async def open_item(self, item: int) -> Page:
        """Return the page of an item, with all attributes and options.

        item: the number of the item
        """
        await asyncio.sleep(self._latency)
        if item not in self._catalogue.items:
            raise ToolError(f"open_item: there is no item {item}, expected a number that search_items returned.")
        self.opened += 1
        found = self._catalogue.items[item]
        options = {name: list(values) for name, values in found.options.items()}
        return Page(item=item, price=found.price, title=found.title, attributes=[*found.attributes], options=options)

    async def rank(self, wanted: str, pages: list[Page]) -> int:
        """Return the number of the item whose page has the most of the wanted words, and a price that is low enough.

        wanted: what is wanted, such as "soft bed black wide under 140"
        pages: pages of items
        """
        if not pages:
            raise ToolError("rank: no pages, expected at least one.")
        return max(pages, key=lambda page: (_matches(wanted, page), -page["item"]))["item"]

    async def buy(self, item: int, options: list[str]) -> str:
        """Buy an item, with those of the options that it has.

        item: the number of the item
        options: such as its colour and size
        """
        await asyncio.sleep(self._latency)
        if self.bought is not None:
            raise ToolError("buy: one item was bought already.")
        if item not in self._catalogue.items:
            raise ToolError(f"buy: there is no item {item}, expected a number that search_items returned.")
        found = self._catalogue.items[item]
        self.bought = Purchase(found, tuple(each for each in options if each in found.choices))
        return " ".join([f"bought item {item}", *self.bought.options])


def _matches(wanted: str, page: Page) -> int:
    limit = LIMIT.search(wanted)
    choices = {value for values in page["options"].values() for value in values}
    words = {*page["title"].split(), *page["attributes"], *choices}
    return len(words & set(wanted.split())) + (limit is None or page["price"] <= int(limit[1]))
