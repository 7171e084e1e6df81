"""Quality over speed of the settings of `tune-decoding`, as in figure 4.4 of the thesis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from intaglio.display.charts import ChartAxis, Kind, Line, Panel, chart, ticks
from intaglio.validation.tuning.tune_decoding import Setting, TunedDecoding


def picture(found: TunedDecoding) -> str:
    """An SVG file: a point per setting, a line through the Pareto front, and the plain model's quality."""
    scores = [getattr(each.quality, found.metric) for each in found.settings]
    speeds = [each.speedup for each in found.settings]
    low, high = math.floor(min(*scores, scores[0] - 1.5)), math.ceil(max(scores) + 0.5)
    slowest, fastest = math.floor(2 * min(speeds)) / 2, math.ceil(2 * max(speeds) + 0.2) / 2
    bild = [each for each in found.settings if each.strategy == "bild"]
    panel = Panel(
        f"{found.texts} texts, scored against {found.reference}",
        ChartAxis("times as fast as the plain large model", ticks(list(np.arange(slowest, fastest + 0.1, 0.5)), 1)),
        ChartAxis(found.metric, ticks(list(range(low, high + 1, max(1, round((high - low) / 6)))))),
        [
            _line(found, "bild, the best at each speed", "ours", _unbeaten(bild, found.metric), dots=False),
            _line(found, "bild", "ours", bild),
            _line(found, "speculative", "peer", found.settings[1:2]),
        ],
        height=320,
        bounds={scores[0]: "plain large model", scores[0] - 1: "one point below"},
    )
    return chart(f"Thresholds of {found.bundle} with {found.draft or 'its early exit'}", [panel])


def _unbeaten(settings: Sequence[Setting], metric: str) -> list[Setting]:
    """The Pareto front: settings with none both faster and better, from the slowest on."""
    kept: list[Setting] = []
    for each in sorted(settings, key=lambda each: -each.speedup):
        if not kept or getattr(each.quality, metric) > getattr(kept[-1].quality, metric):
            kept.append(each)
    return kept[::-1]


def _line(found: TunedDecoding, label: str, kind: Kind, settings: Sequence[Setting], dots: bool = True) -> Line:
    x = np.array([each.speedup for each in settings])
    y = np.array([getattr(each.quality, found.metric) for each in settings])
    return Line(label, kind, x, y, [_name(each) for each in settings] if dots else None)


def _name(setting: Setting) -> str:
    thresholds = "" if setting.fallback is None else f" fallback {setting.fallback:g}, rollback {setting.rollback:g}"
    return f"{setting.strategy}{thresholds}: {setting.speedup:.2f} times as fast"
