"""Outputs of a comparison as rows of a table: caches, of which a decoder has two per layer, as one row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

from intaglio.display.verbosity import is_verbose

MANY = 4  # numbered outputs that begin with the same word, from which on they are one row
NUMBERED = re.compile(r"([^\W\d_]+).*\d")


class Compared(Protocol):
    """An output with its errors."""

    @property
    def max_abs(self) -> float: ...  # noqa: D102
    @property
    def passed(self) -> bool | None: ...  # noqa: D102


Output = TypeVar("Output", bound=Compared)


def summed_up(outputs: Mapping[str, Output]) -> Iterator[tuple[str, Output]]:
    """Yield each output with its name; of `MANY` or more such as `present_key_7` only the worst, unless verbose.

    The worst failed, or else has the largest error. Its row is called `present* (worst of 60: present_key_7)`.
    """
    groups: dict[str, list[str]] = {}
    for name in outputs:
        numbered = NUMBERED.match(name)
        groups.setdefault(numbered[1] if numbered else f"{name} alone", []).append(name)
    for beginning, names in groups.items():
        if len(names) < MANY or is_verbose():
            yield from ((name, outputs[name]) for name in names)
        else:
            worst = max(names, key=lambda name: (not outputs[name].passed, _rank(outputs[name].max_abs)))
            yield f"{beginning}* (worst of {len(names)}: {worst})", outputs[worst]


def _rank(error: float) -> float:
    """The error, with NaN as the largest."""
    return float("inf") if error != error else error
