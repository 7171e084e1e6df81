"""The report's pictures, as inline SVG. Colours come from the page's style sheet, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from intaglio.display.markup import Markup, fill, join
from intaglio.validation.comparison.compare import HISTOGRAM_EDGES
from intaglio.validation.reports.results import LayerError, OutputError

WIDTH, HEIGHT = 640, 280  # user units; the page scales the picture to its column
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 26, 48  # margins for labels
ROW = 22  # height of a layer's row
FLOOR = 1e-9  # smallest relative error shown as different from none


def error_histogram(name: str, output: OutputError) -> Markup:
    """The histogram of an output's errors; both axes are logarithmic."""
    counts = [output.zeros, *output.histogram]
    filled = [index for index, count in enumerate(output.histogram) if count]
    limit = math.log10(output.limit) if 0 < output.limit < math.inf else None
    edges = [float(HISTOGRAM_EDGES[index]) for index in filled] + ([limit] if limit is not None else [])
    low = max(math.floor(min(edges, default=-8)) - 1, int(HISTOGRAM_EDGES[0]))
    high = min(math.ceil(max(edges, default=-4)) + 1, int(HISTOGRAM_EDGES[-1]))
    top = max(1.0, math.log10(max(counts) or 1) * 1.08)
    left = LEFT + 68  # room for the bar of the values without error
    plot = WIDTH - RIGHT - left

    def x(logarithm: float) -> float:
        return left + (min(max(logarithm, low), high) - low) / (high - low) * plot

    def bar(start: float, width: float, count: int, label: str) -> Markup:
        height = (math.log10(count) + 0.15) / (top + 0.15) * _plot_height()  # so that a single value is visible
        return fill(
            '<rect class="bar" x="$x" y="$y" width="$width" height="$height"><title>$label</title></rect>',
            x=_number(start),
            y=_number(HEIGHT - BOTTOM - height),
            width=_number(width),
            height=_number(height),
            label=f"{label}: {count} values",
        )

    parts = _frame("number of values")
    for power in range(math.floor(top) + 1):
        parts += _row(HEIGHT - BOTTOM - (power + 0.15) / (top + 0.15) * _plot_height(), _power(power))
    for power in range(low, high + 1, 1 if high - low <= 10 else 2):
        parts.append(_tick(x(power), _power(power), HEIGHT - BOTTOM))
    parts.append(_tick(LEFT + 24, "0", HEIGHT - BOTTOM))
    if output.zeros:
        parts.append(bar(LEFT + 10, 28, output.zeros, "no error"))
    step = plot / (high - low) / 2
    for index in filled:
        start = float(HISTOGRAM_EDGES[index])
        label = f"|error| from {10**start:.1e} to {10 ** (start + 0.5):.1e}"
        parts.append(bar(x(start) + 1, step - 2, output.histogram[index], label))
    if limit is not None:
        parts += _bound_line(x(limit), HEIGHT - BOTTOM, f"{output.limit:.2g}")
    parts.append(_axis_title("|error|, in the unit of the output", HEIGHT - 8))
    return _picture(f"Histogram of the error of {name}", parts, HEIGHT)


def layer_errors(layers: Sequence[LayerError]) -> Markup:
    """The relative error of each layer, one row each in execution order; the axis is logarithmic."""
    bound = math.log10(layers[0].bound)
    levels = [_level(layer.relative) for layer in layers]
    low = max(math.floor(min(*levels, bound) - 0.1), round(math.log10(FLOOR)))
    high = max(math.ceil(max(*levels, bound) + 0.1), low + 1)
    names = [_short(layer.layer, _common_prefix(layers)) for layer in layers]
    left = 20 + math.ceil(max(map(len, names)) * 6.7)  # a monospaced character of 11 units is this wide
    bottom = TOP + ROW * len(layers)

    def x(logarithm: float) -> float:
        return left + (logarithm - low) / (high - low) * (WIDTH - RIGHT - left)

    parts = []
    for power in range(low, high + 1, math.ceil((high - low) / 8)):
        label = _power(power) if power > math.log10(FLOOR) else "0"
        parts += [_vertical("grid", x(power), TOP, bottom), _tick(x(power), label, bottom)]
    for index, (name, level, layer) in enumerate(zip(names, levels, layers, strict=True)):
        parts.append(
            fill(
                '<text class="name" x="$end" y="$baseline" text-anchor="end">$name</text>'
                '<rect class="$kind" x="$x" y="$y" width="$width" height="$height"><title>$label</title></rect>',
                end=left - 8,
                baseline=_number(TOP + ROW * (index + 0.5) + 4),
                name=name,
                kind="bar" if layer.passed else "bar beyond",
                x=left,
                y=TOP + ROW * index + 4,
                width=_number(x(level) - left),
                height=ROW - 8,
                label=f"{layer.layer}: {layer.relative:.2e}",
            )
        )
    parts.append(_vertical("frame", left, TOP, bottom))
    parts += _bound_line(x(bound), bottom, f"{layers[0].bound:g}")
    parts.append(_axis_title("largest error / largest value", bottom + 40))
    return _picture("Relative error by layer", parts, bottom + BOTTOM)


def _level(relative: float) -> float:
    """log10 of a relative error, clipped to the picture's range."""
    return math.log10(min(max(relative, FLOOR), 1e3))


def _common_prefix(layers: Sequence[LayerError]) -> str:
    """The module that contains all layers but the outermost, such as `model.`: it adds no information."""
    paths = [layer.layer for layer in layers if "." in layer.layer]
    first = {path.partition(".")[0] for path in paths}
    return f"{first.pop()}." if len(first) == 1 else ""


def _short(name: str, prefix: str) -> str:
    name = name.removeprefix(prefix)
    return name if len(name) <= 34 else "…" + name[-33:]


def _plot_height() -> int:
    return HEIGHT - TOP - BOTTOM


def _frame(title: str) -> list[Markup]:
    return [
        fill('<text class="axis" x="$x" y="$y">$title</text>', x=LEFT - 44, y=TOP - 8, title=title),
        _vertical("frame", LEFT, TOP, HEIGHT - BOTTOM),
        fill(
            '<line class="frame" x1="$x" x2="$right" y1="$y" y2="$y"/>', x=LEFT, right=WIDTH - RIGHT, y=HEIGHT - BOTTOM
        ),
    ]


def _row(y: float, label: Markup | str) -> list[Markup]:
    return [
        fill('<line class="grid" x1="$x" x2="$right" y1="$y" y2="$y"/>', x=LEFT, right=WIDTH - RIGHT, y=_number(y)),
        fill(
            '<text class="tick" x="$x" y="$y" text-anchor="end">$label</text>',
            x=LEFT - 7,
            y=_number(y + 4),
            label=label,
        ),
    ]


def _tick(x: float, label: Markup | str, bottom: float) -> Markup:
    return fill(
        '<text class="tick" x="$x" y="$y" text-anchor="middle">$label</text>', x=_number(x), y=bottom + 17, label=label
    )


def _vertical(kind: str, x: float, top: float, bottom: float) -> Markup:
    return fill(
        '<line class="$kind" x1="$x" x2="$x" y1="$top" y2="$bottom"/>', kind=kind, x=_number(x), top=top, bottom=bottom
    )


def _bound_line(x: float, bottom: float, bound: str) -> list[Markup]:
    label = '<text class="bound-label" x="$x" y="$y" text-anchor="middle">bound $bound</text>'
    return [_vertical("bound", x, TOP, bottom), fill(label, x=_number(x), y=TOP - 8, bound=bound)]


def _axis_title(title: str, y: float) -> Markup:
    return fill('<text class="axis" x="$x" y="$y" text-anchor="end">$title</text>', x=WIDTH - RIGHT, y=y, title=title)


def _power(exponent: int) -> Markup:
    """10 to the power of `exponent`, as text with a raised exponent; 1 and 10 are written out."""
    if exponent in (0, 1):
        return Markup(str(10**exponent))
    shown = str(exponent).replace("-", "−")
    return fill('10<tspan dy="-5" font-size="9">$shown</tspan>', shown=shown)


def _number(value: float) -> str:
    return f"{value:.1f}"


def _picture(title: str, parts: Sequence[Markup], height: int) -> Markup:
    return fill(
        '<svg viewBox="0 0 $width $height" role="img" aria-label="$title">\n$parts\n</svg>',
        width=WIDTH,
        height=height,
        title=title,
        parts=join(parts),
    )
