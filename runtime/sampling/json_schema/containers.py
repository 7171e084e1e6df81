"""Sets of arrays and of objects, whose inner values are nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from intaglio.runtime.sampling.json_schema.nodes import ANYTHING, NOTHING, Node, all_of, negate
from intaglio.runtime.sampling.json_schema.texts import found_in


@dataclass(frozen=True)
class Contained:
    """A count of the items that are of a node."""

    node: Node
    least: int = 1
    most: int | None = None


@dataclass(frozen=True)
class Arrays:
    """All arrays that meet some conditions."""

    prefix: tuple[Node, ...] = ()  # of the first items
    rest: Node = ANYTHING  # of the items after them
    least: int = 0
    most: int | None = None
    contains: frozenset[Contained] = frozenset()
    unique: str | None = None  # where the schema is that forbids equal items

    def item(self, place: int) -> Node:
        """Return the node of an item."""
        return self.prefix[place] if place < len(self.prefix) else self.rest

    def both(self, other: Arrays) -> Arrays:
        """Return the arrays that are in both sets."""
        size = max(len(self.prefix), len(other.prefix))
        return Arrays(
            tuple(all_of(self.item(place), other.item(place)) for place in range(size)),
            all_of(self.rest, other.rest),
            max(self.least, other.least),
            _lower(self.most, other.most),
            self.contains | other.contains,
            self.unique or other.unique,
        )

    def negated(self) -> tuple[list[Arrays], bool]:
        """Return sets of all other arrays, and whether they are all of them."""
        others, exact = [], self.unique is None
        for place, node in enumerate(self.prefix):
            if node != ANYTHING:
                before = (ANYTHING,) * place
                others.append(Arrays(prefix=(*before, negate(node)), least=place + 1))
        if self.rest != ANYTHING and not self.prefix:
            others.append(Arrays(contains=frozenset([Contained(negate(self.rest))])))
        elif self.rest == NOTHING:
            others.append(Arrays(least=len(self.prefix) + 1))
        else:
            exact = exact and self.rest == ANYTHING
        others += [Arrays(least=least, most=most) for least, most in _outside(self.least, self.most)]
        for each in self.contains:
            for least, most in _outside(each.least, each.most):
                others.append(Arrays(contains=frozenset([Contained(each.node, least, most)])))
        return others, exact


@dataclass(frozen=True)
class Members:
    """The nodes of an object's values, by their keys, as one schema has them."""

    properties: tuple[tuple[str, Node], ...] = ()
    patterns: tuple[tuple[str, Node], ...] = ()
    rest: Node = ANYTHING  # of keys that are in neither

    def node(self, name: str) -> Node:
        """Return the node of the value of a key. Where validators do not agree on a pattern, it suits all of them."""
        nodes = self.own(name)
        found = {pattern: found_in(pattern, name) for pattern, _ in self.patterns}
        nodes += [node for pattern, node in self.patterns if found[pattern] is not False]
        if not nodes or (all(each is not True for each in found.values()) and len(nodes) > len(self.own(name))):
            nodes.append(self.rest)
        return all_of(*nodes)

    def unsure(self, name: str) -> bool:
        """Whether validators may not agree on the patterns that a key matches."""
        return any(found_in(pattern, name) is None for pattern, _ in self.patterns)

    def own(self, name: str) -> list[Node]:
        """Return the node of the property `name`, if there is one."""
        return [self._by_name[name]] if name in self._by_name else []

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return dict(self.properties)


@dataclass(frozen=True)
class Objects:
    """All objects that meet some conditions."""

    members: tuple[Members, ...] = ()
    required: tuple[str, ...] = ()
    names: frozenset[Node] = frozenset()  # of the keys
    least: int = 0
    most: int | None = None

    @property
    def known(self) -> list[str]:
        """The names that are properties, or required, in order."""
        properties = [name for members in self.members for name, _ in members.properties]
        return list(dict.fromkeys([*properties, *self.required]))

    @property
    def patterns(self) -> list[str]:
        """All patterns of keys."""
        return list(dict.fromkeys(pattern for members in self.members for pattern, _ in members.patterns))

    def node(self, name: str) -> Node:
        """Return the node of the value of a key."""
        return all_of(*(members.node(name) for members in self.members))

    def free(self, matched: Iterable[str]) -> Node:
        """Return the node of the values of keys that are not known and match only these patterns."""
        nodes, matched = [], set(matched)
        for members in self.members:
            found = [node for pattern, node in members.patterns if pattern in matched]
            nodes.append(all_of(*found) if found else members.rest)
        return all_of(*nodes)

    def both(self, other: Objects) -> Objects:
        """Return the objects that are in both sets."""
        return Objects(
            tuple(dict.fromkeys([*self.members, *other.members])),
            tuple(dict.fromkeys([*self.required, *other.required])),
            self.names | other.names,
            max(self.least, other.least),
            _lower(self.most, other.most),
        )

    def negated(self) -> tuple[list[Objects], bool]:
        """Return sets of all other objects, and whether they are all of them."""
        others = [Objects((Members(((name, NOTHING),)),)) for name in self.required]
        exact = not self.names
        for members in self.members:
            for name, node in members.properties:
                if node != ANYTHING:
                    others.append(Objects((Members(((name, negate(node)),)),), (name,)))
            if members.rest == NOTHING and not members.patterns and not members.properties:
                others.append(Objects(least=1))
            else:
                exact = exact and members.rest == ANYTHING and not members.patterns
        others += [Objects(least=least, most=most) for least, most in _outside(self.least, self.most)]
        return others, exact


def _lower(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _outside(least: int, most: int | None) -> list[tuple[int, int | None]]:
    """Return the ranges of counts that are not from `least` to `most`."""
    below: list[tuple[int, int | None]] = [(0, least - 1)] if least else []
    return below if most is None else [*below, (most + 1, None)]
