"""Outputs of a comparison as rows of a table: caches, of which a decoder has two per layer, as one row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

from intaglio.verbosity import is_verbose

MANY = 4  # outputs that differ in a number only, from which on they are one row


class Compared(Protocol):
    """An output with its errors."""

    @property
    def max_abs(self) -> float: ...  # noqa: D102
    @property
    def passed(self) -> bool | None: ...  # noqa: D102


Output = TypeVar("Output", bound=Compared)


def summed_up(outputs: Mapping[str, Output]) -> Iterator[tuple[str, Output]]:
    """Yield each output with its name; of `MANY` or more such as `present.7.key` only the worst, unless verbose.

    The worst failed, or else has the largest error. Its row is called `present.* (worst of 60: present.7.key)`.
    """
    groups: dict[str, list[str]] = {}
    for name in outputs:
        groups.setdefault(re.split(r"\d", name, maxsplit=1)[0], []).append(name)
    for beginning, names in groups.items():
        if len(names) < MANY or is_verbose():
            yield from ((name, outputs[name]) for name in names)
        else:
            worst = max(names, key=lambda name: (not outputs[name].passed, _rank(outputs[name].max_abs)))
            yield f"{beginning}* (worst of {len(names)}: {worst})", outputs[worst]


def _rank(error: float) -> float:
    """The error, with NaN as the largest."""
    return float("inf") if error != error else error
