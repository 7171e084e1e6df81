"""Check JSON values against a schema, by the sets that grammars are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from intaglio.runtime.sampling.json_schema.containers import Arrays, Objects
from intaglio.runtime.sampling.json_schema.document import Document
from intaglio.runtime.sampling.json_schema.expand import Expander
from intaglio.runtime.sampling.json_schema.nodes import Node, any_of
from intaglio.runtime.sampling.json_schema.numbers import exact
from intaglio.runtime.sampling.json_schema.values import Values


class Validator:
    """Whether values are of a schema, by the sets that the grammar is made of: in linear time for any pattern."""

    def __init__(self, schema: Mapping[str, Any]):
        self._expander = Expander(Document(schema))
        self._start = self._expander.leaf(schema)

    def valid(self, value: Any, node: Node | None = None) -> bool:
        """Whether `value` is of the schema, or of a node of its values."""
        return self._of(self._start if node is None else node, value)

    def member(self, name: str) -> Node:
        """Return the node of an object's values of this key."""
        return any_of(each.node(name) for each in self._expander.expand(self._start).objects)

    def values(self, node: Node) -> Values:
        """Return the values of a node."""
        return self._expander.expand(node)

    def _of(self, node: Node, value: Any) -> bool:
        values = self._expander.expand(node)
        if value is None or isinstance(value, bool):
            return values.null if value is None else value in values.booleans
        if isinstance(value, int | float):
            return math.isfinite(value) and any(each.admits(exact(value)) for each in values.numbers)
        if isinstance(value, str):
            return any(each.admits(value) for each in values.texts)
        if isinstance(value, list):
            return any(self._array(each, value) for each in values.arrays)
        return any(self._object(each, value) for each in values.objects)

    def _array(self, arrays: Arrays, value: list[Any]) -> bool:
        if len(value) < arrays.least or (arrays.most is not None and len(value) > arrays.most):
            return False
        if arrays.unique is not None and len({_key(each) for each in value}) < len(value):
            return False
        for each in arrays.contains:
            count = sum(self._of(each.node, item) for item in value)
            if count < each.least or (each.most is not None and count > each.most):
                return False
        return all(self._of(arrays.item(place), item) for place, item in enumerate(value))

    def _object(self, objects: Objects, value: Mapping[str, Any]) -> bool:
        if len(value) < objects.least or (objects.most is not None and len(value) > objects.most):
            return False
        if any(name not in value for name in objects.required):
            return False
        named = all(self._expander.admits(node, name) for node in objects.names for name in value)
        return named and all(self._of(objects.node(name), each) for name, each in value.items())


def _key(value: Any) -> Any:
    """Return a key that equal JSON values share: 1 and 1.0 do, 1 and true do not."""
    if isinstance(value, list):
        return "array", tuple(map(_key, value))
    if isinstance(value, Mapping):
        return "object", frozenset((name, _key(each)) for name, each in value.items())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", Fraction(value) if math.isfinite(value) else value
    return type(value).__name__, value
