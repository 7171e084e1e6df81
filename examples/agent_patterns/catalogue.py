"""A shop in the manner of WebShop (Yao et al. 2022; thesis, appendix D.8): items made from a seed, and a search.

A search shows an item's title and price; all of its attributes and its options are on its page only.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DEPARTMENTS = {
    "bedroom": ("bed", "mattress", "pillow", "blanket", "nightstand"),
    "living": ("sofa", "rug", "lamp", "curtain", "bookcase", "armchair"),
    "kitchen": ("kettle", "pan", "bowl", "mug", "toaster"),
    "clothing": ("shirt", "jacket", "dress", "coat", "sweater", "scarf"),
    "travel": ("backpack", "suitcase", "tent", "umbrella"),
}
BRANDS = ("Alder", "Birk", "Corvo", "Dune", "Elva", "Fjord", "Gable", "Halden", "Isola", "Juno", "Kestrel", "Lumen")
ATTRIBUTES = (
    *("soft", "washable", "waterproof", "lightweight", "durable", "foldable", "organic", "handmade", "vintage"),
    *("modern", "quiet", "portable", "breathable", "recycled", "padded", "sturdy", "compact", "insulated"),
)
COLOURS = ("black", "white", "red", "blue", "green", "grey", "brown", "yellow", "pink", "purple")
SIZES = ("small", "medium", "large", "narrow", "wide", "tall", "short")
SIZE = 2000  # items
SHOWN = 10  # of a search
TITLE_ATTRIBUTES = 1


@dataclass(frozen=True)
class Item:
    """Something to buy."""

    number: int
    brand: str
    kind: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]  # such as the colours there are
    price: int  # dollars

    @property
    def title(self) -> str:
        """The result of a search: not all attributes, and no options."""
        return " ".join([self.brand, *self.attributes[:TITLE_ATTRIBUTES], self.kind])

    @property
    def department(self) -> str:
        """The group of kinds that it belongs to."""
        return next(name for name, kinds in DEPARTMENTS.items() if self.kind in kinds)

    @property
    def choices(self) -> frozenset[str]:
        """All values of its options."""
        return frozenset(value for values in self.options.values() for value in values)


@dataclass(frozen=True)
class Catalogue:
    """Items by number, 1 to `size`; the same seed makes the same ones."""

    seed: int
    size: int = SIZE
    items: Mapping[int, Item] = field(init=False)
    _places: Mapping[str, Sequence[int]] = field(init=False)  # a word of titles -> the items with it

    def __post_init__(self) -> None:
        generator = random.Random(self.seed)  # noqa: S311
        object.__setattr__(self, "items", {number: _item(number, generator) for number in range(1, self.size + 1)})
        places: defaultdict[str, list[int]] = defaultdict(list)
        for item in self.items.values():
            for word in set(item.title.lower().split()):
                places[word].append(item.number)
        object.__setattr__(self, "_places", places)

    def search(self, query: str) -> list[Item]:
        """Return the items whose titles have the rarest words of `query`, the best first."""
        scores: Counter[int] = Counter()
        for word in set(query.lower().split()):
            found = self._places.get(word, ())
            for number in found:
                scores[number] += math.log(1 + self.size / len(found))  # type: ignore[assignment]
        best = sorted(scores, key=lambda number: (-scores[number], number))
        return [self.items[number] for number in best[:SHOWN]]


def _item(number: int, generator: random.Random) -> Item:
    kind = generator.choice([kind for kinds in DEPARTMENTS.values() for kind in kinds])
    options = {
        "colour": tuple(generator.sample(COLOURS, generator.randint(2, 5))),
        "size": tuple(generator.sample(SIZES, generator.randint(2, 4))),
    }
    attributes = tuple(generator.sample(ATTRIBUTES, generator.randint(3, 6)))
    return Item(number, generator.choice(BRANDS), kind, attributes, options, generator.randint(8, 240))
