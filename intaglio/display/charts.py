"""Charts as SVG: lines, bars and labels, ticks, and line charts as files that are readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from intaglio.display.markup import Markup, fill, join

Floats = npt.NDArray[np.floating[Any]]
Kind = Literal["exact", "ours", "peer", "other"]  # of a line: its colour and its dashes

WIDTH = 760  # of a picture, user units
LEFT, RIGHT = 88, 28  # margins of the axes
ABOVE, BELOW = 40, 52  # of a panel's axes: its title, and its ticks
CHARACTER = 6.5  # about the width of one in the legend's font
SAMPLE = 30  # the length of a line in the legend

STYLE = Markup("""<style>
:root { --card: #ffffff; --edge: #d0d7de; --ink: #1f2328; --soft: #59636e; --grid: #eaedf0;
  --exact: #b6bdc5; --ours: #0a5fc4; --peer: #c2410c; --other: #0f766e; }
@media (prefers-color-scheme: dark) { :root { --card: #0d1117; --edge: #30363d; --ink: #e6edf3; --soft: #9aa4af;
  --grid: #21262d; --exact: #5d6670; --ours: #6cb1ff; --peer: #ff9e64; --other: #4fd1c5; } }
.card { fill: var(--card); stroke: var(--edge); }
text { fill: var(--soft); font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; }
.title { fill: var(--ink); font-weight: 600; font-size: 14px; }
.grid { stroke: var(--grid); } .frame { stroke: var(--edge); } .zero { stroke: var(--soft); stroke-opacity: .55; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.exact { stroke: var(--exact); stroke-width: 7; } .ours { stroke: var(--ours); }
.peer { stroke: var(--peer); stroke-dasharray: 8 5; } .other { stroke: var(--other); stroke-dasharray: 1.5 5; }
.point { stroke: none; } .point.exact { fill: var(--exact); } .point.ours { fill: var(--ours); }
.point.peer { fill: var(--peer); } .point.other { fill: var(--other); }
.bound { stroke: var(--soft); stroke-dasharray: 3 4; } .bound-label { font-size: 12px; }
</style>""")


@dataclass(frozen=True)
class Line:
    """A curve: its points, its label in the legend, and its kind; or only points, with `names` next to them."""

    label: str
    kind: Kind
    x: Floats
    y: Floats
    names: Sequence[str] | None = None


@dataclass(frozen=True)
class ChartAxis:
    """An axis from its first tick to its last; `ticks` maps positions to labels."""

    title: str
    ticks: Mapping[float, str]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """The relative position of a value on the axis, clipped to 0 to 1."""
        low, high, value = min(self.ticks), max(self.ticks), float(value)
        value = min(max(value, low), high)
        if self.logarithmic:
            low, high, value = math.log2(low), math.log2(high), math.log2(value)
        return (value - low) / (high - low)


@dataclass(frozen=True)
class Panel:
    """A pair of axes with lines; `bounds` maps heights of dashed lines to their labels."""

    title: str
    x: ChartAxis
    y: ChartAxis
    lines: Sequence[Line]
    height: int = 200
    bounds: Mapping[float, str] = field(default_factory=dict)


def ticks(values: Sequence[float], digits: int = 0) -> dict[float, str]:
    """Ticks with plain numbers, and a typographic minus sign."""
    return {value: f"{value:.{digits}f}".replace("-", "−") for value in values}


def powers(base: int, first: int, last: int, apart: int = 1) -> dict[float, str]:
    """Ticks at the powers of `base` from `first` to `last`, or to the next one after it."""
    return {float(base) ** power: f"{float(base) ** power:g}" for power in range(first, last + apart, apart)}


def spacing(length: float, most: int) -> float:
    """Distance of at most `most` ticks and one at zero over `length` > 0: 1, 2 or 5 times a power of ten."""
    least = 10.0 ** math.floor(math.log10(length / most))
    return next(least * factor for factor in (1, 2, 5, 10) if length / (least * factor) <= most)


def svg(label: str, width: float, height: float, parts: Iterable[Markup], file: bool = False) -> Markup:
    """A picture of a page, whose style sheet styles it; or a `file` with the styles of this module, on a card."""
    opening = '<svg viewBox="0 0 $width $height" role="img" aria-label="$label">\n$parts\n</svg>'
    if file:
        parts = [
            fill("<title>$label</title>", label=label),
            STYLE,
            fill('<rect class="card" x="0.5" y="0.5" width="$x" height="$y" rx="8"/>', x=width - 1, y=height - 1),
            *parts,
        ]
        alone = '<svg xmlns="http://www.w3.org/2000/svg" width="$width" height="$height" '
        opening = opening.replace("<svg ", alone) + "\n"
    return fill(opening, label=label, width=width, height=height, parts=join(parts))


def line(kind: str, x: float, y: float, to_x: float, to_y: float) -> Markup:
    """A straight line."""
    template = '<line class="$kind" x1="$x" y1="$y" x2="$to_x" y2="$to_y"/>'
    return fill(template, kind=kind, x=_rounded(x), y=_rounded(y), to_x=_rounded(to_x), to_y=_rounded(to_y))


def bar(kind: str, x: float, y: float, width: float, height: float, hover: str | None = None) -> Markup:
    """A rectangle; `hover` is shown beside the pointer."""
    return fill(
        '<rect class="$kind" x="$x" y="$y" width="$width" height="$height">$title</rect>',
        kind=kind,
        x=_rounded(x),
        y=_rounded(y),
        width=_rounded(width),
        height=_rounded(height),
        title=Markup() if hover is None else fill("<title>$hover</title>", hover=hover),
    )


def text(x: float, y: float, label: str, kind: str = "", anchor: str = "start") -> Markup:
    """A label; its `anchor` is at `x`: start, middle or end."""
    template = '<text class="$kind" x="$x" y="$y" text-anchor="$anchor">$label</text>'
    return fill(template, kind=kind, x=_rounded(x), y=_rounded(y), anchor=anchor, label=label)


def _rounded(value: float) -> str:
    return f"{value:.1f}"


def chart(description: str, panels: Sequence[Panel]) -> str:
    """The text of an SVG file with a legend of all lines and the panels below each other."""
    parts, y = legend([each for panel in panels for each in panel.lines], 30)
    for panel in panels:
        parts += draw(panel, y + ABOVE)
        y += ABOVE + panel.height + BELOW
    return svg(description, WIDTH, y, parts, file=True)


def legend(lines: Sequence[Line], y: int) -> tuple[list[Markup], int]:
    """A sample and the name of each kind of line, from the height `y` on; and the height below them."""
    kinds = {(each.kind, each.names is not None): each.label for each in lines}
    parts: list[Markup] = []
    x = float(LEFT)
    for (kind, dotted), label in kinds.items():
        width = SAMPLE + 8 + CHARACTER * len(label) + 22
        if x + width > WIDTH - RIGHT + 22:
            x, y = float(LEFT), y + 22
        drawn = '<path class="line $kind" d="M$x $middle h$length"/>'
        if dotted:
            drawn = '<circle class="point $kind" cx="$text" cy="$middle" r="5" transform="translate(-14 0)"/>'
        sample = drawn + '<text x="$text" y="$y">$label</text>'
        parts.append(fill(sample, kind=kind, x=x, middle=y - 4.5, length=SAMPLE, text=x + SAMPLE + 8, y=y, label=label))
        x += width
    return parts, y


def draw(panel: Panel, top: int) -> list[Markup]:
    """Axes, ticks, bounds and lines; `top` is where the axes begin."""
    right, bottom, middle = WIDTH - RIGHT, top + panel.height, (LEFT + WIDTH - RIGHT) / 2
    parts = [
        text(LEFT, top - 14, panel.title, "title"),
        fill(
            '<text transform="translate(26 $y) rotate(-90)" text-anchor="middle">$title</text>',
            y=top + panel.height / 2,
            title=panel.y.title,
        ),
        text(middle, bottom + 40, panel.x.title, anchor="middle"),
    ]
    for value, label in panel.y.ticks.items():
        y = bottom - panel.y.place(value) * panel.height
        parts += [
            line("zero" if value == 0 else "grid", LEFT, y, right, y),
            text(LEFT - 9, y + 4.5, label, anchor="end"),
        ]
    for value, label in panel.x.ticks.items():
        x = LEFT + panel.x.place(value) * (right - LEFT)
        parts += [line("frame", x, bottom, x, bottom + 5), text(x, bottom + 20, label, anchor="middle")]
    for value, label in panel.bounds.items():
        y = bottom - panel.y.place(value) * panel.height
        above = y - 6 if value > 0 else y + 15
        parts += [line("bound", LEFT, y, right, y), text(middle, above, label, "bound-label", "middle")]
    return parts + [curve(panel, each, top) for each in panel.lines]


def curve(panel: Panel, drawn: Line, top: int) -> Markup:
    """One line through its points, or the points."""
    places = [
        (LEFT + panel.x.place(x) * (WIDTH - RIGHT - LEFT), top + (1 - panel.y.place(y)) * panel.height)
        for x, y in zip(drawn.x, drawn.y, strict=True)
    ]
    if drawn.names is not None:
        dot = '<circle class="point $kind" cx="$x" cy="$y" r="5"><title>$name</title></circle>'
        return join(
            fill(dot, kind=drawn.kind, x=f"{x:.1f}", y=f"{y:.1f}", name=name)
            for (x, y), name in zip(places, drawn.names, strict=True)
        )
    path = " ".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return fill('<path class="line $kind" d="M$path"/>', kind=drawn.kind, path=path)
