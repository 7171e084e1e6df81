"""The arguments of a call with the results they refer to."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.runtime.agents.plan.check import (
    Schema,
    by_parameter,
    item_schema,
    problem,
    property_schema,
    resolved,
    schema_of,
)
from intaglio.runtime.agents.plan.plan import Call, PlanError, Reference, Template, Value
from intaglio.runtime.agents.run.observation import Observation, as_text
from intaglio.runtime.agents.tools.tool import Tool

MAX_UNIONS = 8  # unions within unions whose items are looked for


def substituted(call: Call, tool: Tool, observations: Mapping[int, Observation]) -> dict[str, Any]:
    """Return the arguments of `call` by parameter, with results for references.

    1. A reference in a longer string becomes the result's text.
    2. Another one becomes the result itself if the schema allows it there, else its text if the schema allows that,
       else, for a whole number such as 3.0, the integer.
    3. Results are not read again: "$1" in a result stays. Keys of objects stay.

    Results are copied, so tools cannot change each other's. Raises `PlanError` for arguments that do not fit the
    signature or the schema, and for references without a result.
    """
    try:
        return _Substitution(tool.parameters, observations).arguments(call, tool)
    except RecursionError as error:
        raise PlanError(f"call {call.number}, {tool.name}: a result is nested too deep to be an argument.") from error


@dataclass(frozen=True)
class _Substitution:
    root: Mapping[str, Any]
    observations: Mapping[int, Observation]

    def arguments(self, call: Call, tool: Tool) -> dict[str, Any]:
        arguments = {}
        for name, value in by_parameter(call, tool).items():
            schema = schema_of(tool, name)
            arguments[name] = self._value(value, schema)
            if cause := problem(arguments[name], schema, self.root):
                raise PlanError(f"call {call.number}, {tool.name}: {name} {cause}.")
        return arguments

    def _value(self, value: Value, schema: Schema) -> Any:
        match value:
            case Reference(number):
                return self._fitting(self._result(number), schema)
            case Template(parts):
                return "".join(part if isinstance(part, str) else as_text(self._result(part.number)) for part in parts)
            case list() | tuple():
                return [self._value(each, self._inner(schema, place)) for place, each in enumerate(value)]
            case dict():
                return {key: self._value(each, self._inner(schema, key)) for key, each in value.items()}
        return value

    def _result(self, number: int) -> Any:
        observation = self.observations.get(number)
        if observation is None or observation.status != "done":
            raise PlanError(f"${number} has no result.")
        return observation.value

    def _fitting(self, result: Any, schema: Schema) -> Any:
        candidates = [copy.deepcopy(result), as_text(result)]
        if isinstance(result, float) and result.is_integer():
            candidates.append(int(result))
        fitting = (each for each in candidates if problem(each, schema, self.root) is None)
        return next(fitting, candidates[0])

    def _inner(self, schema: Schema, key: int | str, unions: int = MAX_UNIONS) -> Schema:
        """Return the schema of an item of an array, or of a property of an object; False if it is of another type."""
        schema = resolved(schema, self.root)
        if isinstance(schema, bool) or not unions:
            return schema is not False
        kind, types = "array" if isinstance(key, int) else "object", schema.get("type", [])
        if types and kind not in ([types] if isinstance(types, str) else types):
            return False
        parts = [item_schema(schema, key) if isinstance(key, int) else property_schema(schema, key)]
        parts += [self._inner(each, key, unions - 1) for each in schema.get("allOf", ())]
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                parts.append({"anyOf": [self._inner(each, key, unions - 1) for each in schema[keyword]]})
        return {"allOf": parts}
