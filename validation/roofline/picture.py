"""The roofline as a picture: operations per second over operations per byte, both logarithmic."""

from __future__ import annotations

import math

import numpy as np

from intaglio.display.charts import ChartAxis, Line, Panel, chart, powers
from intaglio.validation.roofline.roofline import Roofline


def picture(found: Roofline) -> str:
    """An SVG file: the roof given by bandwidth and peak, and the measurement of each row."""
    intensities = [row.intensity for row in found.rows]
    ridge = found.peak / found.bandwidth
    low, high = math.floor(math.log2(min(*intensities, ridge)) - 1), math.ceil(math.log2(max(*intensities, ridge)) + 1)
    x = np.array([2.0**low, ridge, 2.0**high])
    roof = Line("roof: memory, then products", "exact", x, np.minimum(x * found.bandwidth, found.peak) / 1e9)
    names = [
        f"{row.tokens} tokens, length {row.length}: {row.measured_ms:.2f} ms{', from the cache' * row.above_memory}"
        for row in found.rows
    ]
    speeds = np.array([row.operations / row.measured_ms / 1e6 for row in found.rows])
    measured = Line("measured", "ours", np.array(intensities), speeds, names)
    bottom = math.floor(math.log10(min(speeds.min(), roof.y[0])))
    top = math.ceil(math.log10(max(speeds.max(), roof.y[-1])))
    above = "; above the roof: read from the cache" if any(row.above_memory for row in found.rows) else ""
    panel = Panel(
        f"{found.threads} threads: {found.bandwidth / 1e9:.1f} GB/s, {found.peak / 1e9:.0f} GFLOP/s{above}",
        ChartAxis("operations per byte from memory", powers(2, low, high), logarithmic=True),
        ChartAxis("10⁹ operations per second", powers(10, bottom, top), logarithmic=True),
        [roof, measured],
        height=320,
    )
    return chart(f"Roofline of {found.bundle}", [panel])
