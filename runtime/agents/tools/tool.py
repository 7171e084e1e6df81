"""A tool: a function that a model may call, with a name, a description, and a JSON schema of its arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.errors import IntaglioError, UsageError
from intaglio.runtime.agents.tools.schema import check_schema
from intaglio.runtime.generation.tool_calls.tools import NAME


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
