"""Admission of ready calls: limits for each tool and for all together."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

from intaglio.runtime.agents.tools.tool import Tool

Item = TypeVar("Item")


@dataclass
class _Line(Generic[Item]):
    """The items that wait for one tool."""

    held: int = 0  # slots of the tool, taken by calls that run or wait for an overall slot only
    waiting: list[tuple[int, Item]] = field(default_factory=list)  # a heap


class Admission(Generic[Item]):
    """Admits items in order, except those whose tool has no free slot; they never block other tools.

    An item first takes a slot of its tool, then one of the `parallel` slots of all.
    """

    def __init__(self, parallel: int):
        self._free = parallel
        self._lines: dict[str, _Line[Item]] = {}
        self._eligible: list[tuple[int, Item]] = []  # a heap of those with a slot of their tool

    def enter(self, order: int, item: Item, tool: Tool) -> None:
        """Wait for a slot; `order` is unique among the waiting items."""
        line = self._lines.setdefault(tool.name, _Line())
        if tool.limit is not None and line.held >= tool.limit:
            heappush(line.waiting, (order, item))
        else:
            line.held += 1
            heappush(self._eligible, (order, item))

    def admit(self) -> Item | None:
        """Return the next item, which holds its slot until `leave`; None if none waits, or no slot is free."""
        if not self._free or not self._eligible:
            return None
        self._free -= 1
        return heappop(self._eligible)[1]

    def leave(self, tool: Tool) -> None:
        """Free the slots of an item of `tool`."""
        self._free += 1
        line = self._lines[tool.name]
        if line.waiting:
            heappush(self._eligible, heappop(line.waiting))  # it takes over the slot of the tool
        else:
            line.held -= 1
