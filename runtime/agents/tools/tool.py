"""A tool: a function that a model may call, with a name, a description, and a JSON schema of its arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.errors import IntaglioError, UsageError
from intaglio.runtime.generation.tool_calls.tools import NAME

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
NUMBERS = [
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
]
ONE, LISTS, MAPS = (
    ("items", "additionalProperties"),
    ("anyOf", "oneOf", "allOf", "prefixItems"),
    ("properties", "$defs"),
)
MAX_DEPTH = 64  # of schemas in schemas


class ToolError(IntaglioError):
    """A call of a tool that failed. The message is one line, for the model that called it and for people."""


@dataclass(frozen=True)
class Tool:
    """A tool. Raises `UsageError` for values out of range.

    `function` takes the arguments as keywords. An `async def` runs in the event loop, anything else in a thread, which
    cannot be stopped: a plain function that may wait for long should have a time limit of its own.
    """

    name: str
    description: str  # for the model: what it does, and what it returns
    parameters: Mapping[str, Any]  # JSON schema of an object; its properties are in the order of positional arguments
    function: Callable[..., Awaitable[Any] | Any]
    timeout: float | None = None  # seconds for one call; None: the limit of the run
    limit: int | None = None  # calls at a time; None: any number
    attempts: int = 1  # calls of a task until one succeeds; above 1 only for a tool that may safely be repeated
    shown: int | None = None  # characters of a result that models read, at most; None: the limit of the run
    refuses: Callable[[str], str | None] | None = (
        None  # returns why this tool cannot answer a question, which ends the run
    )

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(f"tool {self.name!r:.80}: expected a name of 1 to 64 of a-z, A-Z, 0-9, _, . and -.")
        if self.parameters.get("type") != "object":
            raise UsageError(f"tool {self.name!r}: expected parameters that are a JSON schema of type object.")
        check_schema(self.parameters, f"tool {self.name!r}: parameters")
        if self.timeout is not None and not 0 < self.timeout < float("inf"):
            raise UsageError(f"tool {self.name!r}: timeout {self.timeout}, expected more than 0 seconds.")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"tool {self.name!r}: limit {self.limit}, expected at least 1 call at a time.")
        if self.shown is not None and self.shown < 0:
            raise UsageError(f"tool {self.name!r}: shown {self.shown}, expected 0 characters or more.")
        if self.attempts < 1:
            raise UsageError(f"tool {self.name!r}: attempts {self.attempts}, expected at least 1.")

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each parameter, in the order of positional arguments."""
        properties: Mapping[str, Any] = self.parameters.get("properties", {})
        return properties

    @property
    def required(self) -> frozenset[str]:
        """The parameters without a default."""
        return frozenset(self.parameters.get("required", ()))

    def as_function(self) -> dict[str, Any]:
        """The tool as OpenAI's API has it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def check_schema(schema: Any, place: str, depth: int = MAX_DEPTH) -> None:
    """Raise `UsageError` if `schema`, or one in it, is not a JSON schema; `place` names it in the message."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise UsageError(f"{place} is {schema!r:.60}, expected a JSON schema: an object, true or false.")
    if not depth:
        raise UsageError(f"{place:.200}... is nested more than {MAX_DEPTH} deep. Use $ref for its inner parts.")
    for keyword, expected, valid in _keywords(schema):
        if not valid:
            raise UsageError(f"{place}: {keyword} is {schema[keyword]!r:.60}, expected {expected}.")
    for keyword in ONE:
        check_schema(schema.get(keyword, True), f"{place}: {keyword}", depth - 1)
    for keyword in LISTS:
        for each in schema.get(keyword, ()):
            check_schema(each, f"{place}: {keyword}", depth - 1)
    for keyword in MAPS:
        for name, each in schema.get(keyword, {}).items():
            check_schema(each, f"{place}: {keyword}: {name}", depth - 1)


def _keywords(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield the keywords that are there, what they must be, and whether they are."""
    for keyword, value in schema.items():
        if keyword == "type":
            types = value if isinstance(value, list) else [value]
            yield keyword, f"one or more of {', '.join(TYPES)}", all(each in TYPES for each in types)
        elif keyword in NUMBERS:
            yield keyword, "a number", isinstance(value, int | float) and not isinstance(value, bool)
        elif keyword in (*LISTS, "enum"):
            yield keyword, "a list", isinstance(value, list)
        elif keyword == "required":
            names = isinstance(value, list) and all(isinstance(each, str) for each in value)
            yield keyword, "a list of names", names
        elif keyword in MAPS:
            yield keyword, "an object", isinstance(value, Mapping)
        elif keyword == "$ref":
            yield keyword, "a reference such as #/$defs/name", isinstance(value, str)
