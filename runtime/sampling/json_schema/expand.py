"""Expand schemas to the sets of values that they allow."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from intaglio.runtime.sampling.json_schema.containers import Arrays, Contained, Members, Objects
from intaglio.runtime.sampling.json_schema.document import TYPES, Document, Schema, UnsupportedError
from intaglio.runtime.sampling.json_schema.evaluated import closures
from intaglio.runtime.sampling.json_schema.formats import FORMATS
from intaglio.runtime.sampling.json_schema.keywords import (
    check_pattern,
    constants,
    dependent_names,
    dependent_schemas,
    numbers_of,
    values_of,
)
from intaglio.runtime.sampling.json_schema.nodes import (
    ANYTHING,
    NOTHING,
    AllOf,
    AnyOf,
    Constant,
    Known,
    Leaf,
    Node,
    Not,
    all_of,
    any_of,
    negate,
)
from intaglio.runtime.sampling.json_schema.texts import Texts
from intaglio.runtime.sampling.json_schema.values import (
    ANY,
    NONE,
    TooManyError,
    Values,
    absent,
    inexact,
    present,
)

MAX_SECONDS = 3  # of processor time
FEW = 4  # sets of objects; of more, those that are not possible are left out at once
SHOWN_ITEMS = 16  # items that are looked at to see whether an array is possible


class CircularError(Exception):
    """A schema that is defined by itself."""


class Expander:
    """Expands the schemas of one document; each combination of schemas once.

    The sets are those that every validator takes; formats are enforced. `loose` expands to those that some validator
    may take, with formats as annotations: what is in none of these is certainly not valid, and may be taken to be
    disjoint, or be complemented.
    """

    def __init__(self, document: Document, origin: Expander | None = None):
        """`origin`: the expander that this one is the loose one of."""
        self.document = document
        self._schemas: list[Mapping[str, Any]] = origin._schemas if origin else []
        self._numbers: dict[int, int] = origin._numbers if origin else {}  # id of a schema -> its number
        self._known: dict[Node, Values] = {}
        self._possible: dict[Node, bool] = {}
        self._open: set[Node] = set()
        self._end: float = origin._end if origin else time.thread_time() + MAX_SECONDS
        self._strict = origin is None
        self.loose: Expander = self if origin else Expander(document, self)

    def check_time(self) -> None:
        """Raise `UnsupportedError` if all of this takes too long."""
        if time.thread_time() > self._end:
            raise UnsupportedError("#", f"takes more than {MAX_SECONDS} s to read. Simplify it.")

    def leaf(self, schema: Schema) -> Node:
        """Return the node of a schema."""
        if isinstance(schema, bool):
            return ANYTHING if schema else NOTHING
        if id(schema) not in self._numbers:
            self._numbers[id(schema)] = len(self._schemas)
            self._schemas.append(schema)
        return Leaf(self._numbers[id(schema)])

    def expand(self, node: Node) -> Values:
        """Return the values of a node. Raises `UnsupportedError`, and `CircularError` if it is defined by itself."""
        if node not in self._known:
            if node in self._open:
                raise CircularError
            self.check_time()
            self._open.add(node)
            try:
                self._known[node] = self._expanded(node)
            finally:
                self._open.discard(node)
        return self._known[node]

    def possible(self, node: Node) -> bool:
        """Whether there may be a value of a node; False only if there is certainly none."""
        if node in self._open:
            return True
        if node not in self._possible:
            self._possible[node] = True  # of a node that contains itself
            try:
                values = self.expand(node)
                self._possible[node] = self._any(values) or not (self._strict or values.exact)
            except CircularError:
                del self._possible[node]
                return True
        return self._possible[node]

    def admits(self, node: Node, name: str) -> bool:
        """Whether a node has this string."""
        values = self.expand(node)
        if self._strict:
            return any(each.admits(name) for each in values.texts)
        return not values.exact or any(each.may_admit(name) for each in values.texts)

    def _any(self, values: Values) -> bool:
        scalars = values.null or values.booleans or values.numbers or values.texts
        return bool(scalars) or any(map(self.array, values.arrays)) or any(map(self.object, values.objects))

    def array(self, arrays: Arrays) -> bool:
        """Whether there may be such an array."""
        if arrays.most is not None and arrays.most < arrays.least:
            return False
        needed = [arrays.item(place) for place in range(min(arrays.least, SHOWN_ITEMS))]
        return all(self.possible(each) for each in dict.fromkeys(needed))

    def object(self, objects: Objects) -> bool:
        """Whether there may be such an object."""
        if objects.most is not None and objects.most < max(objects.least, len(objects.required)):
            return False
        return all(self.member(objects, name) != NOTHING for name in objects.required)

    def member(self, objects: Objects, name: str) -> Node:
        """Return the node of the value of a key; `NOTHING` if the key is not allowed."""
        if not all(self.admits(each, name) for each in objects.names):
            return NOTHING
        if not self._strict and any(each.unsure(name) for each in objects.members):
            return ANYTHING
        node = objects.node(name)
        return node if self.possible(node) else NOTHING

    def _expanded(self, node: Node) -> Values:
        if isinstance(node, Known):
            return node.values  # type: ignore[no-any-return]
        if isinstance(node, Constant):
            return values_of(json.loads(node.text))
        if isinstance(node, AllOf):
            return reduce(self._both, node.nodes, ANY)
        if isinstance(node, AnyOf):
            return reduce(Values.joined, map(self.expand, node.nodes), NONE)
        if isinstance(node, Not):
            inner = self.loose.expand(node.node)
            if not inner.exact:
                raise UnsupportedError(self._path(node.node), "not, or oneOf of options that overlap: too complex here")
            return inner.complement()
        schema = self._schemas[node.number]
        path = self.document.path(schema)
        try:
            return self._schema(schema, path)
        except (TooManyError, RecursionError) as error:
            raise UnsupportedError(path, "has too many combinations. Simplify its anyOf, oneOf, if and not.") from error

    def _both(self, values: Values, node: Node) -> Values:
        """Return the values that are of the node, too."""
        found = values.both(self.expand(node))
        if len(found.objects) <= FEW:
            return found
        return replace(found, objects=tuple(filter(self.object, found.objects)))

    def _path(self, node: Node) -> str:
        return self.document.path(self._schemas[node.number]) if isinstance(node, Leaf) else "#"

    def _schema(self, schema: Mapping[str, Any], path: str) -> Values:
        types = schema.get("type", TYPES)
        values = ANY.only([types] if isinstance(types, str) else types)
        values = values.both(
            Values(
                True,
                ANY.booleans,
                (numbers_of(schema, path),),
                (self._texts(schema, path),),
                (self._arrays(schema, path),),
                (self._objects(schema, path),),
            )
        )
        if "const" in schema:
            values = values.both(values_of(schema["const"]))
        if "enum" in schema:
            values = values.both(constants(schema["enum"]))
        for node in self._in_place(schema):
            values = self._both(values, node)
        if schema.keys() & {"unevaluatedProperties", "unevaluatedItems"}:
            values = inexact(values.both(self.expand(closures(self, schema, path))))
        return values

    def _in_place(self, schema: Mapping[str, Any]) -> list[Node]:
        """Return the nodes that the same value has to be of."""
        nodes = [self.leaf(self.document.resolve(schema, each)) for each in ("$ref", "$dynamicRef") if each in schema]
        nodes += [self.leaf(each) for each in schema.get("allOf", ())]
        if "anyOf" in schema:
            nodes.append(any_of(map(self.leaf, schema["anyOf"])))
        if "oneOf" in schema:
            nodes.append(any_of(self.one_of(schema)))
        if "not" in schema:
            nodes.append(negate(self.leaf(schema["not"])))
        if "if" in schema and schema.keys() & {"then", "else"}:
            nodes.append(any_of(self.conditional(schema)))
        for name, each in (schema.get("dependentSchemas", {}) | dependent_schemas(schema)).items():
            nodes.append(any_of([absent(name), all_of(present(name), self.leaf(each))]))
        for name, needed in (schema.get("dependentRequired", {}) | dependent_names(schema)).items():
            nodes.append(any_of([absent(name), present(name, *needed)]))
        return nodes

    def one_of(self, schema: Mapping[str, Any]) -> list[Node]:
        """Return the nodes of the options of oneOf, each without the options that overlap with it."""
        options = [self.leaf(each) for each in schema["oneOf"]]
        found = []
        for number, option in enumerate(options):
            others = [other for place, other in enumerate(options) if place != number]
            overlapping = [other for other in others if self.loose.possible(all_of(option, other))]
            found.append(all_of(option, *map(negate, overlapping)))
        return found

    def conditional(self, schema: Mapping[str, Any]) -> list[Node]:
        """Return the nodes of both cases of if, then and else."""
        condition = self.leaf(schema["if"])
        then, other = (self.leaf(schema.get(each, True)) for each in ("then", "else"))
        return [all_of(condition, then), all_of(negate(condition), other)]

    def _texts(self, schema: Mapping[str, Any], path: str) -> Texts:
        pattern = schema.get("pattern")
        if pattern is not None:
            check_pattern(pattern, path)
        format_name = schema.get("format")
        format_name = format_name if isinstance(format_name, str) else ""
        return Texts(
            int(schema.get("minLength", 0)),
            int(schema["maxLength"]) if "maxLength" in schema else None,
            patterns=frozenset([pattern] if pattern is not None else []),
            formats=frozenset([format_name] if self._strict and format_name in FORMATS else []),
        )

    def _arrays(self, schema: Mapping[str, Any], path: str) -> Arrays:
        prefix, items = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(items, list):  # as before 2020-12
            prefix, items = items, schema.get("additionalItems", True)
        contains = []
        if "contains" in schema:
            least, most = int(schema.get("minContains", 1)), schema.get("maxContains")
            contains.append(Contained(self.leaf(schema["contains"]), least, None if most is None else int(most)))
        return Arrays(
            tuple(map(self.leaf, prefix)),
            self.leaf(items),
            int(schema.get("minItems", 0)),
            int(schema["maxItems"]) if "maxItems" in schema else None,
            frozenset(each for each in contains if (each.least, each.most) != (0, None)),
            path if schema.get("uniqueItems") else None,
        )

    def _objects(self, schema: Mapping[str, Any], path: str) -> Objects:
        for pattern in schema.get("patternProperties", ()):
            check_pattern(pattern, path)
        properties = tuple((name, self.leaf(each)) for name, each in schema.get("properties", {}).items())
        patterns = tuple((name, self.leaf(each)) for name, each in schema.get("patternProperties", {}).items())
        rest = self.leaf(schema.get("additionalProperties", True))
        members = Members(properties, patterns, rest)
        names = frozenset({self.leaf(schema.get("propertyNames", True))} - {ANYTHING})
        return Objects(
            (members,) if members != Members() else (),
            tuple(dict.fromkeys(schema.get("required", ()))),
            names,
            int(schema.get("minProperties", 0)),
            int(schema["maxProperties"]) if "maxProperties" in schema else None,
        )
