"""Puts the results of earlier calls in place of the references of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intaglio.runtime.agents.observation import Observation
from intaglio.runtime.agents.plan import Call, PlanError, Reference, Template, Value
from intaglio.runtime.agents.tool import Tool


def substituted(call: Call, tool: Tool, observations: Mapping[int, Observation]) -> dict[str, Any]:
    """Return the arguments of `call` by parameter. Raises `PlanError` for more arguments than parameters."""
    if len(call.arguments) > len(tool.properties):
        raise PlanError(f"{tool.name}: {len(call.arguments)} arguments, expected at most {len(tool.properties)}.")
    named = {**dict(zip(tool.properties, call.arguments, strict=False)), **call.keywords}
    return {name: _value(value, observations) for name, value in named.items()}


def _value(value: Value, observations: Mapping[int, Observation]) -> Any:
    match value:
        case Reference(number):
            return observations[number].value
        case Template(parts):
            return "".join(part if isinstance(part, str) else observations[part.number].text for part in parts)
        case dict():
            return {key: _value(each, observations) for key, each in value.items()}
        case list() | tuple():
            return [_value(each, observations) for each in value]
    return value
