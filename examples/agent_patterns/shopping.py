"""What a customer wants, in words, and how good a purchase is: the reward of WebShop (Yao et al. 2022).

The reward is the share of the request that the purchase fulfils, times a factor for the type of the item:

    type * (wanted attributes that it has + wanted options that were chosen + 1 if the price is not too high)
         / (wanted attributes + wanted options + 1)

The factor is 1 for the kind that was asked for, 0.5 for another kind of the same department, 0.1 if only a word of the
titles is the same, 0 otherwise. (WebShop compares the categories, and the nouns of the titles, of real products.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from agent_patterns.catalogue import Catalogue, Item

TEMPLATES = (
    "I am looking for a {0} {kind} that is {1}, in {colour} and {size}, with a price lower than {price} dollars.",
    "Find me a {0}, {1} {kind}. Colour: {colour}. Size: {size}. It should cost less than {price} dollars.",
    "I need a {colour} {kind} which is {0} and {1}, size {size}, under {price} dollars.",
    "Buy a {size} {kind} in {colour}. It has to be {0} and {1}, and I can pay up to {price} dollars.",
    "My old {kind} broke. Please get a {0} one in {colour}, {size}, that is also {1}, for at most {price} dollars.",
    "I want a {size}, {colour} and {0} {kind}, {1} too, for no more than {price} dollars.",
)


@dataclass(frozen=True)
class Goal:
    """A customer's request."""

    item: Item  # one that has all of it
    attributes: tuple[str, str]
    colour: str
    size: str
    price: int  # at most, dollars
    template: str

    @property
    def instruction(self) -> str:
        """The customer's words."""
        return self.template.format(
            *self.attributes, kind=self.item.kind, colour=self.colour, size=self.size, price=self.price
        )

    @property
    def options(self) -> list[str]:
        """The wanted options, in the order of the instruction."""
        return self._mentioned([self.colour, self.size])

    @property
    def wanted(self) -> str:
        """All that is wanted in few words, in the order of the instruction."""
        words = self._mentioned([*self.attributes, self.item.kind, self.colour, self.size])
        return " ".join([*words, f"under {self.price}"])

    def _mentioned(self, words: list[str]) -> list[str]:
        return sorted(words, key=self.instruction.index)


@dataclass(frozen=True)
class Purchase:
    """A purchase."""

    item: Item
    options: tuple[str, ...]


def goals(catalogue: Catalogue, seed: int) -> Iterator[Goal]:
    """Yield goals without end, each of which an item of the catalogue has."""
    generator = random.Random(seed)  # noqa: S311
    while True:
        item = catalogue.items[generator.randint(1, catalogue.size)]
        first, second = generator.sample(item.attributes, 2)
        price = 10 * (item.price // 10 + generator.randint(1, 3))
        colour, size = (generator.choice(item.options[name]) for name in ("colour", "size"))
        yield Goal(item, (first, second), colour, size, price, generator.choice(TEMPLATES))


def reward(goal: Goal, purchase: Purchase | None) -> float:
    """Return the reward, 0 to 1; 0 if nothing was bought."""
    if purchase is None:
        return 0.0
    item = purchase.item
    attributes = len(set(goal.attributes) & set(item.attributes))
    options = len(set(goal.options) & set(purchase.options))
    share = (attributes + options + (item.price <= goal.price)) / (len(goal.attributes) + len(goal.options) + 1)
    return type_factor(goal.item, item) * share


def type_factor(wanted: Item, bought: Item) -> float:
    """Return the factor for the type of the item."""
    if wanted.kind == bought.kind:
        return 1.0
    if wanted.department == bought.department:
        return 0.5
    return 0.1 if set(wanted.title.split()) & set(bought.title.split()) else 0.0
