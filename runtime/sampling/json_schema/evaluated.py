"""`unevaluatedProperties` and `unevaluatedItems`: what the keywords beside them, and in the options taken, evaluate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Protocol

from intaglio.runtime.sampling.json_schema.containers import Arrays, Members, Objects
from intaglio.runtime.sampling.json_schema.document import Document, Schema, UnsupportedError
from intaglio.runtime.sampling.json_schema.nodes import ANYTHING, Known, Node, all_of, any_of
from intaglio.runtime.sampling.json_schema.values import ANY, Values, absent, present

MOST = 64  # combinations of options
MOST_TOGETHER = 3  # options of anyOf, of which several may be taken
MAX_DEPTH = 16


class Reader(Protocol):
    """What reads the schemas of a document."""

    document: Document

    def leaf(self, schema: Schema) -> Node:
        """Return the node of a schema."""

    def one_of(self, schema: Mapping[str, Any]) -> list[Node]:
        """Return the nodes of the options of oneOf."""

    def conditional(self, schema: Mapping[str, Any]) -> list[Node]:
        """Return the nodes of both cases of if, then and else."""


@dataclass(frozen=True)
class Evaluated:
    """What is evaluated where the value is of `nodes`."""

    nodes: tuple[Node, ...] = ()
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    properties: bool = False  # all of them
    count: int = 0  # of the first items
    items: bool = False  # all of them

    def and_also(self, other: Evaluated) -> Evaluated:
        """Return what both evaluate."""
        return Evaluated(
            self.nodes + other.nodes,
            self.names + other.names,
            self.patterns + other.patterns,
            self.properties or other.properties,
            max(self.count, other.count),
            self.items or other.items,
        )


def closures(reader: Reader, schema: Mapping[str, Any], path: str) -> Node:
    """Return the values whose unevaluated properties and items are of the schemas that these keywords have."""
    beside = {key: value for key, value in schema.items() if not key.startswith("unevaluated")}
    found = []
    for each in _Search(reader, path).cases(beside, schema, MAX_DEPTH):
        arrays, objects = Arrays(), Objects()
        if not each.items:
            arrays = Arrays((ANYTHING,) * each.count, reader.leaf(schema.get("unevaluatedItems", True)))
        if not each.properties:
            names = tuple((name, ANYTHING) for name in dict.fromkeys(each.names))
            patterns = tuple((pattern, ANYTHING) for pattern in dict.fromkeys(each.patterns))
            rest = reader.leaf(schema.get("unevaluatedProperties", True))
            objects = Objects((Members(names, patterns, rest),))
        closed = Values(ANY.null, ANY.booleans, ANY.numbers, ANY.texts, (arrays,), (objects,))
        found.append(all_of(*each.nodes, Known(closed)))
    return any_of(found)


class _Search:
    def __init__(self, reader: Reader, path: str):
        self._reader, self._path = reader, path

    def cases(self, schema: Schema, place: Schema, depth: int) -> list[Evaluated]:
        """Return the cases of a schema. `place`: itself, as the document has it."""
        if isinstance(schema, bool):
            return [Evaluated()]
        cases = [_own(schema)]
        for options in self._options(schema, place, depth):
            if len(cases) * len(options) > MOST or not depth:
                raise UnsupportedError(self._path, "unevaluated keywords beside too many options. Simplify it.")
            cases = [one.and_also(other) for one, other in product(cases, options)]
        return cases

    def _inner(self, schema: Schema, depth: int, *nodes: Node) -> list[Evaluated]:
        return [Evaluated(nodes).and_also(each) for each in self.cases(schema, schema, depth - 1)]

    def _options(self, schema: Mapping[str, Any], place: Schema, depth: int) -> Iterator[list[Evaluated]]:
        reader = self._reader
        assert isinstance(place, Mapping)
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in schema:
                yield self._inner(reader.document.resolve(place, keyword), depth)
        for each in schema.get("allOf", ()):
            yield self._inner(each, depth)
        if "anyOf" in schema:
            options = [self._inner(each, depth, reader.leaf(each)) for each in schema["anyOf"]]
            yield _several(options)
        if "oneOf" in schema:
            nodes = reader.one_of(schema)
            options = [self._inner(each, depth, node) for each, node in zip(schema["oneOf"], nodes, strict=True)]
            yield [each for option in options for each in option]
        if "if" in schema:
            yes, no = reader.conditional(schema)
            then = [
                one.and_also(other)
                for one in self._inner(schema["if"], depth, yes)
                for other in self._inner(schema.get("then", True), depth)
            ]
            yield then + self._inner(schema.get("else", True), depth, no)
        for name, each in schema.get("dependentSchemas", {}).items():
            yield [Evaluated((absent(name),)), *self._inner(each, depth, present(name))]


def _own(schema: Mapping[str, Any]) -> Evaluated:
    return Evaluated(
        names=tuple(schema.get("properties", ())),
        patterns=tuple(schema.get("patternProperties", ())),
        properties=bool(schema.keys() & {"additionalProperties", "unevaluatedProperties"}),
        count=len(schema.get("prefixItems", ())),
        items=bool(schema.keys() & {"items", "unevaluatedItems"}),
    )


def _several(options: list[list[Evaluated]]) -> list[Evaluated]:
    """Return the cases of one or more options of anyOf."""
    most = len(options) if len(options) <= MOST_TOGETHER else 1
    found = []
    for count in range(1, most + 1):
        for chosen in combinations(options, count):
            cases = [Evaluated()]
            for option in chosen:
                cases = [one.and_also(other) for one in cases for other in option]
            found += cases
    return found
