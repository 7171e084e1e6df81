"""HTML and SVG from templates; everything is escaped unless it is already markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template


class Markup(str):
    """Text that is markup: made by `fill`, or a literal of ours."""

    __slots__ = ()


def fill(template: str, **values: object) -> Markup:
    """`template` with each $name replaced by its value: escaped, unless it is `Markup`."""
    shown = {
        name: value if isinstance(value, Markup) else escape(_without_controls(str(value)))
        for name, value in values.items()
    }
    return Markup(Template(template).substitute(shown))


def join(parts: Iterable[Markup]) -> Markup:
    """The parts, one per line."""
    return Markup("\n".join(parts))


def _without_controls(text: str) -> str:
    """Replace control characters, which XML does not allow but file names may contain, by U+FFFD."""
    return "".join(char if char >= " " and not "\ud800" <= char <= "\udfff" else "\ufffd" for char in text)
