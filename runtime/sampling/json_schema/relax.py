"""Leave out the keywords of a tool's parameters that a grammar cannot enforce; the finished arguments are checked."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from intaglio.errors import EngineError
from intaglio.runtime.sampling.json_schema.containers import Arrays, Objects
from intaglio.runtime.sampling.json_schema.document import Document, UnsupportedError, at_pointer
from intaglio.runtime.sampling.json_schema.expand import Expander
from intaglio.runtime.sampling.json_schema.nodes import Node
from intaglio.runtime.sampling.json_schema.numbers import exact

MOST = 32  # keywords that are left out of one schema


class Relaxed(NamedTuple):
    """A schema without some of its keywords."""

    schema: Mapping[str, Any]
    left_out: tuple[str, ...]  # such as "uniqueItems at #/properties/tags"


def relaxed(schema: Mapping[str, Any], write: Callable[[str], object]) -> Relaxed:
    """Leave out of `schema` what `write`, which is called with its JSON, cannot enforce and a check can."""
    left_out: list[str] = []
    while len(left_out) < MOST:
        try:
            write(json.dumps(schema, ensure_ascii=False))
        except UnsupportedError as error:
            smaller: Any = copy.deepcopy(schema)
            place = at_pointer(smaller, error.path.removeprefix("#"))
            if error.keyword is None or not isinstance(place, dict) or error.keyword not in place:
                break  # the grammar will name it
            del place[error.keyword]
            schema = smaller
            left_out.append(f"{error.keyword} at {error.path}")
        else:
            break
    return Relaxed(schema, tuple(left_out))


class ArgumentCheck:
    """Checks the arguments of a finished call of one tool."""

    def __init__(self, tool: str, schema: Mapping[str, Any], left_out: tuple[str, ...]):
        """`left_out`: what the grammar of the arguments does not enforce."""
        self._tool, self._schema, self._left_out = tool, schema, left_out

    def __call__(self, arguments: str) -> None:
        """Raise `EngineError` if the JSON text `arguments` is not of the schema."""
        if not _Validator(self._schema).valid(json.loads(arguments)):
            keywords = ", ".join(self._left_out)
            raise EngineError(
                f"the model called tool {self._tool!r} with arguments that break {keywords}. "
                "Ask again, or leave the keyword out."
            )


class _Validator:
    """Whether values are of a schema, by the sets that the grammar is made of: in linear time for any pattern."""

    def __init__(self, schema: Mapping[str, Any]):
        self._expander = Expander(Document(schema))
        self._start = self._expander.leaf(schema)

    def valid(self, value: Any) -> bool:
        """Whether `value` is of the schema."""
        return self._of(self._start, value)

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
