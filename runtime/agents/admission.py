"""Which of the calls that are ready may start: limits for each tool and for all together."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

from intaglio.runtime.agents.tool import Tool

Item = TypeVar("Item")


@dataclass
class _Line(Generic[Item]):
    """Those that wait for one tool."""

    held: int = 0  # places at the tool, taken by calls that run or wait for an overall place only
    waiting: list[tuple[int, Item]] = field(default_factory=list)  # a heap


class Admission(Generic[Item]):
    """Admits items in their order, but for those whose tool has no place left: they hold up no other.

    An item first takes a place at its tool, then one of the `parallel` places of all.
    """

    def __init__(self, parallel: int):
        self._free = parallel
        self._lines: dict[str, _Line[Item]] = {}
        self._eligible: list[tuple[int, Item]] = []  # a heap of those with a place at their tool

    def enter(self, order: int, item: Item, tool: Tool) -> None:
        """Wait for a place; `order` is no other item's that waits."""
        line = self._lines.setdefault(tool.name, _Line())
        if tool.limit is not None and line.held >= tool.limit:
            heappush(line.waiting, (order, item))
        else:
            line.held += 1
            heappush(self._eligible, (order, item))

    def admit(self) -> Item | None:
        """Return the next item, which takes its place until `leave`; None if there is none, or no place."""
        if not self._free or not self._eligible:
            return None
        self._free -= 1
        return heappop(self._eligible)[1]

    def leave(self, tool: Tool) -> None:
        """Free the places of an item of `tool`."""
        self._free += 1
        line = self._lines[tool.name]
        if line.waiting:
            heappush(self._eligible, heappop(line.waiting))  # it takes over the place at the tool
        else:
            line.held -= 1
