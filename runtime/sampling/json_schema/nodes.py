"""Combinations of schemas: what the values inside arrays and objects have to be. They are expanded when needed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Leaf:
    """One schema of the document, by its number."""

    number: int


@dataclass(frozen=True)
class Constant:
    """One value."""

    text: str  # JSON


@dataclass(frozen=True)
class Known:
    """Values that are known already, as `values.Values`."""

    values: Any


@dataclass(frozen=True)
class AllOf:
    """The values of all nodes; without any, all values."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class AnyOf:
    """The values of one or more nodes; without any, no value."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Not:
    """The values that are not of the node."""

    node: Node


Node = Leaf | Constant | Known | AllOf | AnyOf | Not
ANYTHING = AllOf(())
NOTHING = AnyOf(())


def constant(value: Any) -> Constant:
    """Return the node of one value."""
    return Constant(json.dumps(value, ensure_ascii=False))


def all_of(*nodes: Node) -> Node:
    """Return the values that are in all nodes."""
    flat = dict.fromkeys(inner for each in nodes for inner in (each.nodes if isinstance(each, AllOf) else (each,)))
    if NOTHING in flat:
        return NOTHING
    return next(iter(flat)) if len(flat) == 1 else AllOf(tuple(flat))


def any_of(nodes: Iterable[Node]) -> Node:
    """Return the values that are in one or more nodes."""
    flat = dict.fromkeys(nodes)
    if ANYTHING in flat:
        return ANYTHING
    return next(iter(flat)) if len(flat) == 1 else AnyOf(tuple(flat))


def negate(node: Node) -> Node:
    """Return the values that are not in a node."""
    if isinstance(node, Not):
        return node.node
    if node in (ANYTHING, NOTHING):
        return NOTHING if node == ANYTHING else ANYTHING
    return Not(node)
