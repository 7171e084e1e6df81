"""What the stages of a job cost, fitted to records of small ones: seconds for each operation, byte and call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.cluster.plan import Work
from benchmarks.cluster.recording import Stage


@dataclass(frozen=True)
class Costs:
    """Seconds of a task, of opening a stretch in a worker, of the driver before a stage and for each of its tasks."""

    task: Callable[[Work], float]
    opening: Callable[[Work], float]
    before: Callable[[Work], float]
    driver: Callable[[Work], float]


Features = Callable[[Work], list[float]]
TASK: dict[str, Features] = {
    "run_batch": lambda work: [1, work.operations, work.received],
    "products_of": lambda work: [1, work.operations],
    "rounded_rows": lambda work: [1, work.size, work.operations],
}
BEFORE: dict[str, Features] = {
    "run_batch": lambda work: [1, work.size],
    "products_of": lambda work: [1, work.size**2],
    "rounded_rows": lambda work: [1, work.size**2, work.size**3],
}


def moved(work: Work) -> list[float]:
    """What the driver's own work for a task follows from: it reads arguments and stores results."""
    return [1, work.sent + work.received]


def fit(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> npt.NDArray[np.float64]:
    """Coefficients of at least 0 with the least sum of squared relative errors."""
    table, target = np.array(rows, np.float64), np.maximum(seconds, 1e-5)
    scale = np.maximum(table.max(axis=0), 1)
    used = np.ones(table.shape[1], bool)
    while True:
        weighted = table[:, used] / scale[used] / target[:, None]
        found = np.linalg.lstsq(weighted, np.ones(len(target)), rcond=None)[0]
        if (found >= 0).all() or used.sum() == 1:
            coefficients = np.zeros(len(used))
            coefficients[used] = np.maximum(found, 0) / scale[used]
            return coefficients
        used[np.flatnonzero(used)[np.argmin(found)]] = False


def costs_of(recorded: Iterable[tuple[Work, Stage]]) -> Costs:
    """Fit the costs to what was recorded."""
    pairs = list(recorded)

    def fitted(features: dict[str, Features], of: Callable[[Work, Stage], float | None]) -> Callable[[Work], float]:
        coefficients = {}
        for name, feature in features.items():
            known = [(feature(w), s) for w, stage in pairs if w.function == name and (s := of(w, stage)) is not None]
            if known:
                coefficients[name] = fit(*zip(*known, strict=True))

        def seconds(work: Work) -> float:
            found = coefficients.get(work.function)
            return 0.0 if found is None else float(found @ np.array(features[work.function](work), np.float64))

        return seconds

    def usual(_: Work, stage: Stage) -> float:
        return median(each.seconds for each in stage.tasks[len(stage.tasks) > 1 :])

    def opening(work: Work, stage: Stage) -> float | None:
        opened = work.function == "run_batch"
        return max(0.0, stage.tasks[0].seconds - usual(work, stage)) if opened else None

    return Costs(
        fitted(TASK, usual),
        fitted(BEFORE, opening),
        fitted(BEFORE, lambda _, stage: stage.before),
        fitted(dict.fromkeys(TASK, moved), lambda _, stage: median([e.driver for e in stage.tasks[1:]] or [0.0])),
    )
