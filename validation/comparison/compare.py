"""Compare two runners over many inputs, with Polygraphy's `Comparator` and our own comparison function.

Polygraphy activates both runners, runs them on one batch after the other, and passes each pair of results to
`CompareOutputs`; the differences of all batches are then added up. Only one batch's outputs are in memory at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from polygraphy.comparator import Comparator
from polygraphy.comparator.compare import BaseCompareFunc
from polygraphy.exception import PolygraphyException
from polygraphy.logger import G_LOGGER

from intaglio.accuracy import metrics
from intaglio.accuracy.default_bounds import INTEGER, Bound, Bounds
from intaglio.display.progress import track
from intaglio.errors import EngineError, UsageError, one_line
from intaglio.validation.comparison.runners import Runner
from intaglio.validation.measures.measures import Measure

Array = npt.NDArray[np.generic]

# log10 |error| in half decades. Errors outside are counted in the first and the last bin.
HISTOGRAM_EDGES = np.arange(-12.0, 4.5, 0.5)
CHUNK = 1 << 16  # values compared at a time: their float64 copies stay in the cache


@dataclass(frozen=True)
class Difference:
    """The difference of values from the expected ones. Differences over parts add up to that over the whole."""

    count: int = 0  # values compared
    zeros: int = 0  # of them, values without any error
    max_abs: float = 0.0  # infinity if only one side is NaN or infinite
    sum_abs: float = 0.0
    largest: float = 0.0  # |expected|, finite values only
    cosine: float = 1.0  # smallest along the last axis
    nans: int = 0  # on either side
    infinities: int = 0  # on either side
    histogram: tuple[int, ...] = (0,) * (len(HISTOGRAM_EDGES) - 1)  # of log10 |error| where it is finite and not 0

    def __add__(self, other: Difference) -> Difference:
        return Difference(
            self.count + other.count,
            self.zeros + other.zeros,
            max(self.max_abs, other.max_abs),
            self.sum_abs + other.sum_abs,
            max(self.largest, other.largest),
            min(self.cosine, other.cosine),
            self.nans + other.nans,
            self.infinities + other.infinities,
            tuple(map(add, self.histogram, other.histogram)),
        )

    @property
    def mean_abs(self) -> float:
        """Mean |error|."""
        return self.sum_abs / self.count if self.count else 0.0

    @property
    def relative(self) -> float:
        """Largest |error| / largest |expected|; infinity if all expected values are 0 and the others are not."""
        if self.max_abs == 0:
            return 0.0
        return self.max_abs / self.largest if self.largest else float("inf")


def difference(actual: Array, expected: Array) -> Difference:
    """Compare two arrays of the same shape, in float64. Equal infinities and pairs of NaN have no error."""
    if actual.shape != expected.shape:
        raise ValueError(f"shapes {actual.shape} and {expected.shape}")
    if actual.size == 0:
        return Difference()
    width = actual.shape[-1] if actual.ndim else 1
    left, right = actual.reshape(-1, width), expected.reshape(-1, width)
    rows = max(1, CHUNK // width)
    chunks = (slice(start, start + rows) for start in range(0, len(left), rows))
    return reduce(add, (_difference(left[chunk], right[chunk]) for chunk in chunks))


def _difference(actual: Array, expected: Array) -> Difference:
    """`difference` of a few rows, [rows, width]."""
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    error = metrics.difference(left, right)
    countable = error[np.isfinite(error) & (error > 0)]
    bins = (np.log10(countable) - HISTOGRAM_EDGES[0]) / (HISTOGRAM_EDGES[1] - HISTOGRAM_EDGES[0])
    last = len(HISTOGRAM_EDGES) - 2
    histogram = np.bincount(np.clip(bins, 0, last).astype(np.int64), minlength=last + 1)
    same = np.isinf(left) & (left == right)  # -inf masks on both sides do not change the direction
    return Difference(
        count=error.size,
        zeros=int(np.count_nonzero(error == 0)),
        max_abs=float(error.max()),
        sum_abs=float(error.sum()),
        largest=float(np.max(np.abs(right), where=np.isfinite(right), initial=0.0)),
        cosine=min(metrics.cosine(np.where(same, 0.0, left), np.where(same, 0.0, right)), 1.0),  # rounding passes 1
        nans=int(np.isnan(left).sum() + np.isnan(right).sum()),
        infinities=int(np.isinf(left).sum() + np.isinf(right).sum()),
        histogram=tuple(histogram.tolist()),
    )


@dataclass(frozen=True)
class Compared:
    """The comparison of one output; true if it is within all its bounds."""

    difference: Difference
    bound: Bound
    cosine_floor: float | None  # None for integers, and if it is not judged
    mismatch: str = ""  # why the two could not be compared

    # Polygraphy calls this to log statistics of both outputs; quantiles of a batch of logits take seconds, and nobody
    # reads them.
    output1_name: ClassVar[str] = ""

    @property
    def broken(self) -> list[str]:
        """The violated bounds, in words."""
        if self.mismatch:
            return [self.mismatch]
        seen, broken = self.difference, []
        if seen.nans:
            broken.append(f"{seen.nans} NaN")
        limit = self.bound.limit(seen.largest)
        if not seen.max_abs <= limit or np.isinf(seen.max_abs):
            broken.append(f"largest error {seen.max_abs:.3g} is above {limit:.3g}")
        if self.cosine_floor is not None and not seen.cosine >= self.cosine_floor:
            broken.append(f"cosine {seen.cosine:.7g} is below {self.cosine_floor:g}")
        return broken

    def __bool__(self) -> bool:
        return not self.broken

    def __add__(self, other: Compared) -> Compared:
        return Compared(
            self.difference + other.difference, self.bound, self.cosine_floor, self.mismatch or other.mismatch
        )


class CompareOutputs(BaseCompareFunc):  # type: ignore[misc]
    """The comparison function that Polygraphy calls with the two results of each iteration, actual first.

    Compares the outputs `names`, or all common ones; returns name -> `Compared`. Values at or below `masked_below`
    count as -infinity: a masked score is the lowest number of the dtype.
    `seen` is called with both results of each iteration, in order.
    """

    def __init__(
        self,
        bounds: Bounds,
        names: Collection[str] | None = None,
        masked_below: float = -np.inf,
        seen: Callable[[Mapping[str, Array], Mapping[str, Array]], None] | None = None,
    ):
        self.bounds = bounds
        self.names = names
        self.masked_below = masked_below
        self.seen = seen

    def __call__(self, iter_result0: Mapping[str, Array], iter_result1: Mapping[str, Array]) -> dict[str, Compared]:
        """Compare the two results of one iteration."""
        if self.seen is not None:
            self.seen(iter_result0, iter_result1)
        return OrderedDict(
            (name, self._compare(actual, iter_result1[name]))
            for name, actual in iter_result0.items()
            if name in iter_result1 and (self.names is None or name in self.names)
        )

    def _compare(self, actual: Array, expected: Array) -> Compared:
        is_float = np.issubdtype(actual.dtype, np.floating)
        bound = self.bounds.output if is_float else INTEGER
        floor = self.bounds.cosine.value if is_float and self.bounds.cosine is not None else None
        mismatch = ""
        if is_float != np.issubdtype(expected.dtype, np.floating):
            mismatch = f"dtype {actual.dtype.name}, expected {expected.dtype.name}"
        elif actual.shape != expected.shape:
            mismatch = f"shape {list(actual.shape)}, expected {list(expected.shape)}"
        if mismatch:
            return Compared(Difference(), bound, floor, mismatch)
        if is_float:
            actual, expected = self._without_mask(actual), self._without_mask(expected)
        return Compared(difference(actual, expected), bound, floor)

    def _without_mask(self, array: Any) -> Array:
        return np.where(array <= self.masked_below, -np.inf, array)


@dataclass(frozen=True)
class Comparison:
    """All outputs over all iterations, and the worst iteration."""

    outputs: dict[str, Compared]
    worst: int  # index of the iteration with the largest error relative to the allowed one


def compare(
    actual: Runner,
    expected: Runner,
    feeds: Sequence[Mapping[str, Array]],
    bounds: Bounds,
    names: Collection[str] | None = None,
    masked_below: float = -np.inf,
    measure: Measure[Any] | None = None,
) -> Comparison:
    """Run both runners on every batch of `feeds` and compare their outputs; see `CompareOutputs`.

    `measure` also gets every batch.

    Raises `UsageError` if they have no common output, `EngineError` for inputs that do not fit one of them.
    """
    batches = iter(feeds)

    def take(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
        if measure is not None:
            measure.add(measure.part(next(batches), dict(found), dict(wanted)))

    function = CompareOutputs(bounds, names, masked_below, take)
    return combined(compared_batches(actual, expected, feeds, function), actual.name, expected.name)


def compared_batches(
    actual: Runner, expected: Runner, feeds: Sequence[Mapping[str, Array]], function: CompareOutputs
) -> list[dict[str, Compared]]:
    """Run both runners on every batch of `feeds`; return what `function` returns for each."""
    with _quiet():
        stream = Comparator.run([actual, expected], data_loader=_batches(feeds), streaming=True)
        try:
            results = Comparator.compare_accuracy(stream, compare_func=function)
        except PolygraphyException as error:
            reason = one_line(error)
            raise EngineError(f"{actual.name} and {expected.name} cannot run on the same inputs: {reason}") from error
    return results[0][actual.name, expected.name]  # type: ignore[no-any-return]


def combined(iterations: Sequence[Mapping[str, Compared]], actual: str, expected: str) -> Comparison:
    """Add up the comparisons of all batches, of the runners with these names; see `compare`."""
    if not iterations[0]:
        raise UsageError(f"{actual} and {expected} have no common output. Compare bundles of the same task.")
    outputs = {name: reduce(add, (iteration[name] for iteration in iterations)) for name in iterations[0]}
    excess = [max(_excess(compared) for compared in iteration.values()) for iteration in iterations]
    return Comparison(outputs, int(np.argmax(excess)))


def _excess(compared: Compared) -> float:
    """The error / the allowed error; if any finite error is allowed, relative to the largest expected value."""
    seen = compared.difference
    if compared.mismatch or seen.nans:
        return float("inf")
    limit = compared.bound.limit(seen.largest)
    if limit == float("inf"):
        return seen.relative
    return seen.max_abs / limit if limit else (float("inf") if seen.max_abs else 0.0)


def _batches(feeds: Sequence[Mapping[str, Array]]) -> Iterator[Any]:
    return iter(track(feeds, "comparing", total=len(feeds)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Polygraphy's log on standard output, and NumPy's warnings about NaN and infinity."""
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1), np.errstate(all="ignore"):
        yield
