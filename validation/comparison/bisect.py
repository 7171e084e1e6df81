"""Find the first layer whose error is beyond its bound.

Each round runs both sides once with at most `PROBES` evenly spaced candidates as additional outputs, and narrows the
search to the candidates between the last probe within its bound and the first one beyond. A layer's error is relative
to the largest expected magnitude.

Errors can shrink again downstream: a LayerNorm or a softmax can remove the error of a faulty layer, so that later
probes are within their bounds. The guarantee is therefore: the layer found is beyond its bound, and the candidate
before it was measured within. It is the first one overall unless an earlier error had shrunk below its bound at every
probe. If the evenly spaced probes of the first round find nothing, every candidate is measured, in order.

Candidates whose two values have different shapes, or an integer and a float dtype, cannot be compared (a pass may have
reused an old name for a quantised value); they are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from intaglio.accuracy.default_bounds import Bounds
from intaglio.validation.comparison.compare import Array, Difference, compare
from intaglio.validation.comparison.compared_models import ComparedModel

PROBES = 8  # values per run; they are in memory together with the outputs
MASKED_BELOW = -6e4  # a masked attention score: from the lowest float16, -65504, down to the lowest float32

Measure = Callable[[Sequence[str]], Mapping[str, Difference]]


def measure_layers(
    actual: ComparedModel,
    expected: ComparedModel,
    names: Sequence[str],
    feeds: Sequence[Mapping[str, Array]],
    bounds: Bounds,
) -> dict[str, Difference]:
    """Run both sides once on `feeds` and compare the graph values `names`, except those not comparable."""
    held_to = replace(bounds, output=bounds.layer)
    compared = compare(actual.runner(names), expected.runner(names), feeds, held_to, names, MASKED_BELOW).outputs
    return {name: compared[name].difference for name in names if name in compared and not compared[name].mismatch}


def is_beyond(difference: Difference, bounds: Bounds) -> bool:
    """Whether a layer's error is above its bound, or NaN."""
    return bool(difference.nans) or not difference.relative <= bounds.layer.value


def first_beyond(candidates: Sequence[str], measure: Measure, bounds: Bounds) -> tuple[str, Difference] | None:
    """The first of `candidates`, in the order they are computed, that is beyond its bound; None if none is.

    `measure` compares the given values and leaves out those that cannot be compared.
    """
    interval = list(candidates)
    measured: set[str] = set()
    found: tuple[str, Difference] | None = None
    while interval:
        probes = evenly_spaced(interval, PROBES)
        differences = measure(probes)
        measured.update(probes)
        interval = [name for name in interval if name not in probes or name in differences]
        comparable = [name for name in probes if name in differences]
        first = next((name for name in comparable if is_beyond(differences[name], bounds)), None)
        if first is not None:
            found = first, differences[first]
            interval = interval[: interval.index(first)]
        if within := [name for name in comparable if name in interval]:
            interval = interval[interval.index(within[-1]) + 1 :]
    return found or _scan([name for name in candidates if name not in measured], measure, bounds)


def _scan(candidates: Sequence[str], measure: Measure, bounds: Bounds) -> tuple[str, Difference] | None:
    """Measure every candidate in order, until one is beyond its bound."""
    for start in range(0, len(candidates), PROBES):
        batch = candidates[start : start + PROBES]
        differences = measure(batch)
        for name in batch:
            if name in differences and is_beyond(differences[name], bounds):
                return name, differences[name]
    return None


def evenly_spaced(names: Sequence[str], count: int) -> list[str]:
    """At most `count` of `names`, evenly spaced, always including the last one."""
    ends = np.linspace(0, len(names), min(count, len(names)) + 1)[1:]
    return [names[round(end) - 1] for end in ends]


def blocks(layers: Mapping[str, str]) -> dict[str, str]:
    """The block-level layers, value -> module path: those not inside a numbered block such as `encoder.layer.3`.

    If several modules return the same value, such as the last block and the model, the block's name is used.
    """
    named: dict[str, str] = {}
    for path, value in layers.items():
        *outer, last = path.split(".")
        if not any(part.isdigit() for part in outer) and (last.isdigit() or value not in named):
            named[value] = path
    return named
