"""The plan of an agent: calls of tools whose arguments may refer to the results of earlier calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from intaglio.errors import IntaglioError

ENDINGS = frozenset({"join", "finish"})  # names of calls that end a plan
MAX_DEPTH = 32  # of the lists and objects in an argument


class PlanError(IntaglioError):
    """A plan that cannot be run; the message is written for the model that wrote it, and for people."""


@dataclass(frozen=True)
class Reference:
    """The result of another call: `$1` or `${1}` as a whole argument, or as an item of a list or an object."""

    number: int


@dataclass(frozen=True)
class Template:
    """A string with references in it, such as "the age of $1"."""

    parts: tuple[str | Reference, ...]


# None, bool, int, float, str, Reference, Template, a list of values, or a dict of strings to values.
Value = Any


@dataclass(frozen=True)
class Call:
    """One call of a plan: `3. search("age of $1", limit=2)`."""

    number: int
    tool: str
    arguments: Sequence[Value] = ()  # positional
    keywords: Mapping[str, Value] = field(default_factory=dict)
    thought: str | None = None  # the line before the call, without "Thought:"

    @property
    def references(self) -> frozenset[int]:
        """The numbers of the calls whose results are arguments."""
        return frozenset(references([*self.arguments, *self.keywords.values()]))


@dataclass(frozen=True)
class Join:
    """The end of a plan: the results go to the joiner."""

    thought: str | None = None


def references(value: Value) -> Iterator[int]:
    """Yield the numbers that `value` refers to, in order, with repetitions."""
    match value:
        case Reference(number):
            yield number
        case Template(parts):
            for part in parts:
                yield from references(part)
        case dict():
            for each in value.values():
                yield from references(each)
        case list() | tuple():
            for each in value:
                yield from references(each)
