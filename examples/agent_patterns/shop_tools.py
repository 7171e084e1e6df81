"""The tools of the shop: search, open a page, compare pages, buy."""

from __future__ import annotations

import asyncio
import re
from typing import TypedDict

from agent_patterns.catalogue import Catalogue, Item
from agent_patterns.shopping import Purchase
from intaglio import Tool, ToolError, tool

LIMIT = re.compile(r"\bunder (\d+)")


class Page(TypedDict):
    """The page of an item."""

    result: int
    price: int
    title: str
    attributes: list[str]
    options: dict[str, list[str]]


class Shop:
    """One customer's visit: at most one purchase. Every page takes `latency` seconds, as pages of the web do.

    What searches find is numbered 1, 2, ... as links are in text browsers; the other tools take these numbers. Pages
    are for `rank`: a small model cannot compare them, and need not read them.
    """

    def __init__(self, catalogue: Catalogue, latency: float = 0.0):
        self._catalogue, self._latency = catalogue, latency
        self._found: list[Item] = []
        self.bought: Purchase | None = None
        self.opened = 0  # pages of items

    def tools(self) -> dict[str, Tool]:
        """Return the tools."""
        page = tool(shown=0)(self.open_item)
        return {each.name: each for each in (tool(self.search_items), page, tool(self.rank), tool(self.buy))}

    async def search_items(self, query: str) -> str:
        """Return the query in the first line, and the ten best results: number, title and price of each.

        query: all that is wanted, such as "soft bed black wide under 140"; only words of titles count
        """
        await asyncio.sleep(self._latency)
        found = self._catalogue.search(query)
        first = len(self._found) + 1
        self._found += found
        lines = (f"{number} {item.title}, {item.price} dollars" for number, item in enumerate(found, first))
        return "\n".join([f"{query}:", *lines])

    async def open_item(self, result: int) -> Page:
        """Return the page of a result, with all attributes and options.

        result: its number
        """
        await asyncio.sleep(self._latency)
        found = self._item(result)
        self.opened += 1
        options = {name: list(values) for name, values in found.options.items()}
        return Page(
            result=result, price=found.price, title=found.title, attributes=[*found.attributes], options=options
        )

    async def rank(self, wanted: str, pages: list[Page]) -> int:
        """Return the number of the result whose page has the most of the wanted words, and a price that is low enough.

        wanted: what is wanted, in the first line: the result of search_items
        pages: pages of results
        """
        if not pages:
            raise ToolError("rank: no pages, expected at least one.")
        return max(pages, key=lambda page: (_matches(wanted, page), -page["result"]))["result"]

    async def buy(self, result: int, options: str) -> str:
        """Buy a result, with those of its options that are in the first line of `options`.

        result: its number
        options: such as colour and size: the result of search_items
        """
        await asyncio.sleep(self._latency)
        if self.bought is not None:
            raise ToolError("buy: one item was bought already.")
        found = self._item(result)
        self.bought = Purchase(found, tuple(each for each in _words(options) if each in found.choices))
        return " ".join([f"bought result {result}", *self.bought.options])

    def _item(self, result: int) -> Item:
        if not 1 <= result <= len(self._found):
            raise ToolError(f"there is no result {result}, expected a number that search_items returned.")
        return self._found[result - 1]


def _matches(wanted: str, page: Page) -> int:
    limit = LIMIT.search(wanted)
    choices = {value for values in page["options"].values() for value in values}
    words = {*page["title"].split(), *page["attributes"], *choices}
    return len(words & set(_words(wanted))) + (limit is None or page["price"] <= int(limit[1]))


def _words(text: str) -> list[str]:
    """Return the words of the first line."""
    return text.partition("\n")[0].rstrip(":").split()
