"""Sets of JSON values: for each type, a union of sets. They can be joined, intersected and complemented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from intaglio.runtime.sampling.json_schema.containers import Arrays, Members, Objects
from intaglio.runtime.sampling.json_schema.nodes import NOTHING, Known, Node
from intaglio.runtime.sampling.json_schema.numbers import Numbers
from intaglio.runtime.sampling.json_schema.texts import Texts

MOST = 256  # sets in a union
KINDS = ("numbers", "texts", "arrays", "objects")


class TooManyError(ValueError):
    """A union of too many sets."""


@dataclass(frozen=True)
class Values:
    """A set of JSON values."""

    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[Numbers, ...] = ()
    texts: tuple[Texts, ...] = ()
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()
    exact: bool = True  # False: there are more values, which cannot be expressed

    def joined(self, other: Values) -> Values:
        """Return the values of both sets."""
        kinds = {kind: _few((*getattr(self, kind), *getattr(other, kind))) for kind in KINDS}
        return Values(
            self.null or other.null, self.booleans | other.booleans, exact=self.exact and other.exact, **kinds
        )

    def both(self, other: Values) -> Values:
        """Return the values that are in both sets."""
        kinds = {kind: _product(getattr(self, kind), getattr(other, kind)) for kind in KINDS}
        return Values(
            self.null and other.null, self.booleans & other.booleans, exact=self.exact and other.exact, **kinds
        )

    def complement(self) -> Values:
        """Return all other values; `exact` is False if some of them cannot be expressed."""
        exact, kinds = self.exact, {}
        for kind in KINDS:
            left: tuple[Any, ...] = getattr(ANY, kind)
            for each in getattr(self, kind):
                others, all_others = each.negated()
                exact = exact and all_others
                left = _product(left, others)
            kinds[kind] = left
        return Values(not self.null, frozenset([False, True]) - self.booleans, exact=exact, **kinds)

    @property
    def empty(self) -> bool:
        """Whether there is no value of any type."""
        return not (self.null or self.booleans or any(getattr(self, kind) for kind in KINDS))

    def only(self, types: Sequence[str]) -> Values:
        """Return the values of some types of JSON Schema."""
        numbers = ANY.numbers if "number" in types else (Numbers(whole=True),) if "integer" in types else ()
        return Values(
            self.null and "null" in types,
            self.booleans if "boolean" in types else frozenset(),
            _product(self.numbers, numbers),
            self.texts if "string" in types else (),
            self.arrays if "array" in types else (),
            self.objects if "object" in types else (),
            self.exact,
        )


def _few(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    parts = tuple(dict.fromkeys(parts))
    if len(parts) > MOST:
        raise TooManyError
    return parts


def _product(some: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
    if len(some) * len(others) > MOST * MOST:
        raise TooManyError
    found = (one if one == other else one.both(other) for one in some for other in others)
    return _few(tuple(each for each in found if not getattr(each, "empty", False)))


ANY = Values(True, frozenset([False, True]), (Numbers(),), (Texts(),), (Arrays(),), (Objects(),))
NONE = Values()


def inexact(values: Values) -> Values:
    """Return the values as a set of which there are more."""
    return replace(values, exact=False)


def absent(name: str) -> Node:
    """Return the values without a property."""
    return _with_objects(Objects((Members(((name, NOTHING),)),)))


def present(*names: str) -> Node:
    """Return the values that have some properties if they are objects."""
    return _with_objects(Objects(required=names))


def _with_objects(objects: Objects) -> Node:
    return Known(Values(ANY.null, ANY.booleans, ANY.numbers, ANY.texts, ANY.arrays, (objects,)))
