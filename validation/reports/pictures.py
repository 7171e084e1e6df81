"""The report's pictures, as inline SVG. Colours come from the page's style sheet, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from intaglio.display.charts import bar, line, svg, text
from intaglio.display.markup import Markup, fill
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

    def up(logarithm: float) -> float:
        return bottom - (logarithm + 0.15) / (top + 0.15) * (bottom - TOP)  # so that a single value is visible

    def column(start: float, width: float, count: int, label: str) -> Markup:
        y = up(math.log10(count))
        return bar("bar", start, y, width, bottom - y, f"{label}: {count} values")

    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        text(LEFT - 44, TOP - 8, "number of values", "axis"),
        line("frame", LEFT, TOP, LEFT, bottom),
        line("frame", LEFT, bottom, right, bottom),
    ]
    for power in range(math.floor(top) + 1):
        y = up(power)
        parts += [line("grid", LEFT, y, right, y), text(LEFT - 7, y + 4, _power(power), "tick", "end")]
    for power in range(low, high + 1, 1 if high - low <= 10 else 2):
        parts.append(_tick(x(power), _power(power), bottom))
    parts.append(_tick(LEFT + 24, "0", bottom))
    if output.zeros:
        parts.append(column(LEFT + 10, 28, output.zeros, "no error"))
    step = plot / (high - low) / 2
    for index in filled:
        start = float(HISTOGRAM_EDGES[index])
        label = f"|error| from {10**start:.1e} to {10 ** (start + 0.5):.1e}"
        parts.append(column(x(start) + 1, step - 2, output.histogram[index], label))
    if limit is not None:
        parts += _bound_line(x(limit), bottom, f"{output.limit:.2g}")
    parts.append(text(right, HEIGHT - 8, "|error|, in the unit of the output", "axis", "end"))
    return svg(f"Histogram of the error of {name}", WIDTH, HEIGHT, parts)


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
        parts += [line("grid", x(power), TOP, x(power), bottom), _tick(x(power), label, bottom)]
    for index, (name, level, layer) in enumerate(zip(names, levels, layers, strict=True)):
        hover, y = f"{layer.layer}: {layer.relative:.2e}", TOP + ROW * index
        parts += [
            text(left - 8, y + ROW / 2 + 4, name, "name", "end"),
            bar("bar" if layer.passed else "bar beyond", left, y + 4, x(level) - left, ROW - 8, hover),
        ]
    parts.append(line("frame", left, TOP, left, bottom))
    parts += _bound_line(x(bound), bottom, f"{layers[0].bound:g}")
    parts.append(text(WIDTH - RIGHT, bottom + 40, "largest error / largest value", "axis", "end"))
    return svg("Relative error by layer", WIDTH, bottom + BOTTOM, parts)


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


def _tick(x: float, label: str, bottom: float) -> Markup:
    return text(x, bottom + 17, label, "tick", "middle")


def _bound_line(x: float, bottom: float, bound: str) -> list[Markup]:
    return [line("bound", x, TOP, x, bottom), text(x, TOP - 8, f"bound {bound}", "bound-label", "middle")]


def _power(exponent: int) -> Markup:
    """10 to the power of `exponent`, as text with a raised exponent; 1 and 10 are written out."""
    if exponent in (0, 1):
        return Markup(str(10**exponent))
    shown = str(exponent).replace("-", "−")
    return fill('10<tspan dy="-5" font-size="9">$shown</tspan>', shown=shown)
