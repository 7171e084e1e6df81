"""Compare two models in the workers of an executor: a batch of inputs is a task."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from intaglio.accuracy.default_bounds import Bounds
from intaglio.display.progress import track
from intaglio.executors.executor import Executor
from intaglio.executors.kept import kept
from intaglio.executors.shared_files import SharedBundle
from intaglio.validation.comparison.compare import (
    Array,
    Compared,
    CompareOutputs,
    Comparison,
    combined,
    compared_batches,
)
from intaglio.validation.comparison.compared_models import ComparedModel
from intaglio.validation.comparison.runners import Runner
from intaglio.validation.measures.measures import Measure


@dataclass(frozen=True)
class SharedModel:
    """A `ComparedModel` as an argument of a task."""

    bundle: SharedBundle
    kind: str
    name: str

    @classmethod
    def of(cls, model: ComparedModel) -> SharedModel:
        """`model`, which is no source checkpoint."""
        return cls(SharedBundle.of(model.bundle), model.kind, model.name)

    def open(self) -> ComparedModel:
        """Open it in this process."""
        return ComparedModel(self.bundle.open(), self.kind, self.name)


def compare_in_workers(
    actual: ComparedModel,
    expected: ComparedModel,
    feeds: Sequence[Mapping[str, Array]],
    bounds: Bounds,
    measure: Measure[Any] | None,
    executor: Executor,
) -> Comparison:
    """As `compare`, with both models open in each worker."""
    sides, empty = (SharedModel.of(actual), SharedModel.of(expected)), copy.deepcopy(measure)
    iterations = []
    results = executor.map(compare_batch, ((*sides, batch, bounds, empty) for batch in feeds))
    for compared, part in track(results, "comparing", total=len(feeds)):
        iterations.append(compared)
        if measure is not None:
            measure.add(part)
    return combined(iterations, actual.name, expected.name)


def compare_batch(
    actual: SharedModel,
    expected: SharedModel,
    feeds: Mapping[str, Array],
    bounds: Bounds,
    measure: Measure[Any] | None,
) -> tuple[dict[str, Compared], Any]:
    """Compare both models on a batch; return the comparison of each output, and what `measure` adds."""
    parts = []

    def take(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
        if measure is not None:
            parts.append(measure.part(feeds, dict(found), dict(wanted)))

    (compared,) = compared_batches(*kept(_runners, actual, expected), [feeds], CompareOutputs(bounds, seen=take))
    return dict(compared), parts[0] if parts else None


@contextmanager
def _runners(actual: SharedModel, expected: SharedModel) -> Iterator[tuple[Runner, Runner]]:
    """The runners of both models, whose engines stay open meanwhile."""
    with ExitStack() as engines:
        yield actual.open().open_runner(engines), expected.open().open_runner(engines)
