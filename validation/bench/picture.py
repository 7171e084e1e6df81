"""Throughput and latency of a benchmark as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from intaglio.display.charts import ChartAxis, Kind, Line, Panel, chart, powers, spacing, ticks
from intaglio.display.markup import Markup, fill
from intaglio.errors import UsageError
from intaglio.validation.bench.results import Bench, LoadResult, SubjectResult

PAGE = '<!doctype html>\n<meta charset="utf-8">\n<title>$title</title>\n$svg\n'


def check_suffix(path: Path) -> None:
    """Raise `UsageError` for a file that is neither SVG nor HTML."""
    if path.suffix not in (".svg", ".html"):
        raise UsageError(f"--plot {path}: expected a name that ends with .svg or .html.")


def file(found: Bench, path: Path) -> str:
    """The content of `path`: an SVG file, or an HTML page that holds it."""
    drawn = picture(found)
    return drawn if path.suffix == ".svg" else fill(PAGE, title=f"intaglio bench {found.subject}", svg=Markup(drawn))


def picture(found: Bench) -> str:
    """An SVG file: throughput and latency at each concurrency and prompt length, beside the baseline's."""
    names = {float(place): _name(row) for place, row in enumerate(found.rows)}
    x = ChartAxis("concurrency × prompt tokens", {-0.5: "", **names, len(names) - 0.5: ""})
    sides: list[tuple[SubjectResult, Kind, Kind]] = [(found, "ours", "exact")]
    if found.baseline is not None:
        sides.append((found.baseline, "peer", "other"))
    throughput = [_line(found, side, kind, "", lambda row: row.throughput, found.unit) for side, kind, _ in sides]
    latency = [
        line
        for side, kind, tail in sides
        for line in (
            _line(found, side, kind, ", median", lambda row: row.median_ms, "ms"),
            _line(found, side, tail, ", 99th percentile", lambda row: row.p99_ms, "ms"),
        )
    ]
    panels = [
        Panel(f"{found.processor}: throughput", x, _from_zero(f"{found.unit} per second", throughput), throughput),
        Panel("latency of a request", x, _powers("milliseconds", latency), latency),
    ]
    return chart(f"intaglio bench {found.subject}", panels)


def _name(row: LoadResult) -> str:
    return f"{row.concurrency} × {row.prompt_tokens_read:.0f}"


def _line(
    found: Bench, side: SubjectResult, kind: Kind, what: str, value: Callable[[LoadResult], float], unit: str
) -> Line:
    """A point for each row of `side`, at the place of the same row of `found`."""
    places = {(row.concurrency, row.prompt_tokens): place for place, row in enumerate(found.rows)}
    rows = [row for row in side.rows if (row.concurrency, row.prompt_tokens) in places]
    x = np.array([float(places[row.concurrency, row.prompt_tokens]) for row in rows])
    y = np.array([value(row) for row in rows])
    label = f"{side.subject}{what}"
    return Line(label, kind, x, y, [f"{label}: {each:.4g} {unit}" for each in y])


def _from_zero(title: str, lines: list[Line]) -> ChartAxis:
    top = max(float(line.y.max()) for line in lines)
    apart = spacing(max(top, 1e-9), 6)
    digits = max(-math.floor(math.log10(apart)), 0)
    return ChartAxis(title, ticks([apart * number for number in range(math.ceil(top / apart) + 1)], digits))


def _powers(title: str, lines: list[Line]) -> ChartAxis:
    """A logarithmic axis with a tick at each power of two."""
    low = math.floor(math.log2(max(min(float(line.y.min()) for line in lines), 1e-6)))
    high = max(math.ceil(math.log2(max(float(line.y.max()) for line in lines))), low + 1)
    return ChartAxis(title, powers(2, low, high, max((high - low) // 6, 1)), logarithmic=True)
