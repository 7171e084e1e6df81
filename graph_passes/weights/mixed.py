"""Mixed: choose bits and method of each layer within a budget, minimising the sum of sensitivity-weighted errors."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.display.progress import track
from intaglio.errors import GraphError
from intaglio.executors.executor import INLINE
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.lookup_tables.compensation import Compensation
from intaglio.graph_passes.lookup_tables.compressed import Floats, Method, compensated, compressed, fitted_lut
from intaglio.graph_passes.lookup_tables.layers import (
    Batches,
    Rewriting,
    compensated_levels,
    layers_and_batches,
    sensitivities_of,
)
from intaglio.graph_passes.weights.linear_layers import LinearLayer, by_weight
from intaglio.graph_passes.weights.options import TABLE_BITS, SparsePass, TablePass


@dataclass(frozen=True)
class Choice:
    """A way to store a layer: its bytes and its error. `method` None: the layer uncompressed."""

    method: Method | None
    nbytes: int
    error: float


@dataclass(frozen=True)
class Mixed(TablePass, SparsePass):
    """Store each layer as in `lut` or `lut_sparse` with 2, 3 or 4 bits, or leave it uncompressed.

    1. The budget is `bits_per_weight` on average over the layers that can be compressed, tables and sparse matrices
       counted, or `megabytes` (10^6 bytes) for all of them. Raises `GraphError` for one that 2 bits exceed.
    2. Every way is tried on every layer and its error measured: with `compensate` by the sensitivities of the rows and
       the second moments of the inputs (`compensated_rows`), without by Σ sensitivity·difference² of the weights. On
       the lower convex hull of error over bytes, steps are taken in the order of error reduction per byte, until the
       budget is used up; then any step that still fits.
    3. The other options and the skipped layers: see `lut` and `lut_sparse`.
    """

    name: ClassVar[str] = "mixed"
    effect: ClassVar[Effect] = Effect.WEIGHTS_3
    bits_per_weight: float = 3.5
    megabytes: float | None = None

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        layers, batches = layers_and_batches(model, self, inputs, counts)
        groups = by_weight(layers)
        measured = self._measured(model, groups, inputs, batches)
        choices = [measured[group[0].weight] for group in groups]
        budget = self._budget(groups)
        chosen = choose(choices, budget)
        if chosen is None:
            least = sum(min(choice.nbytes for choice in each) for each in choices)
            weights = sum(_size(group[0]) for group in groups)
            raise GraphError(
                f"{self.name}: a budget of {budget} bytes, but the layers take at least {least} "
                f"({8 * least / weights:.3f} bits per weight). Raise it, or leave layers out with skip."
            )
        methods: dict[ir.Value, Method] = {}
        for group, choice in zip(groups, chosen, strict=True):
            if choice.method is None:
                counts.skip_requested(group[0].name, "left uncompressed, within the budget")
            else:
                methods[group[0].weight] = choice.method
                kept = " and sparse" if choice.method.sensitive or choice.method.outliers else ""
                counts.add(f"{choice.method.bits} bits{kept}")
        taken = [layer for layer in layers if layer.weight in methods]
        rewriting = Rewriting(f"{self.name}: rewriting", self.activation_bits, inputs.sensitivities, inputs)
        rewriting.run(model, taken, lambda layer: methods[layer.weight], counts, batches)

    def _measured(
        self,
        model: ir.Model,
        groups: Sequence[Sequence[LinearLayer]],
        inputs: PassInputs,
        batches: Batches | None,
    ) -> dict[ir.Value, list[Choice]]:
        """Return the ways to store each weight, with their errors."""
        description, methods, finished = f"{self.name}: measuring", self._methods(), inputs.finished
        layers = [group[0] for group in groups]
        unmeasured = [layer for layer in layers if _record(layer) not in finished]

        def tasks() -> Iterator[tuple[Floats, Floats, list[Method], Any]]:
            levels: Iterable[tuple[list[LinearLayer], Compensation | None]] = [(unmeasured, None)]
            if batches is not None:
                levels = compensated_levels(model, unmeasured, batches, inputs.executor)
            for level, compensation in levels:
                shared = None if compensation is None else inputs.executor.share(compensation)
                for layer in level:
                    order.append(layer)
                    yield layer.matrix(), sensitivities_of(layer, inputs.sensitivities), methods, shared

        order: list[LinearLayer] = []  # that of the tasks
        measured: dict[LinearLayer, list[Choice]] = {}
        results = inputs.executor.map(measure, tasks())
        for place, choices in enumerate(track(results, description, total=len(unmeasured))):
            layer = order[place]
            measured[layer] = choices
            sizes, errors = [choice.nbytes for choice in choices], [choice.error for choice in choices]
            finished.put(_record(layer), sizes=np.array(sizes), errors=np.array(errors, np.float64))
        found: dict[ir.Value, list[Choice]] = {}
        for layer in layers:
            if layer not in measured:
                record = finished.read(_record(layer))
                known = zip(methods, record["sizes"], record["errors"], strict=True)
                measured[layer] = [Choice(method, int(size), float(error)) for method, size, error in known]
            tensor = layer.weight.const_value
            assert tensor is not None
            found[layer.weight] = [Choice(None, tensor.nbytes, 0.0), *measured[layer]]
        return found

    def _methods(self) -> list[Method]:
        plain = [Method(bits, self.table_bits) for bits in TABLE_BITS]
        if not (self.sensitive or self.outliers):
            return plain
        return plain + [Method(bits, self.table_bits, self.sensitive, self.outliers) for bits in TABLE_BITS]

    def _budget(self, groups: Sequence[Sequence[LinearLayer]]) -> int:
        if self.megabytes is not None:
            return int(self.megabytes * 1e6)
        return int(self.bits_per_weight * sum(_size(group[0]) for group in groups) / 8)


def _record(layer: LinearLayer) -> str:
    """Return the name under which a layer's choices are kept."""
    return f"{layer.name}, choices"


def measure(
    matrix: Floats, sensitivities: Floats, methods: Sequence[Method], compensation: Compensation | None
) -> list[Choice]:
    """Return the size and the error of a weight [N, K] stored by each of `methods`."""
    found = []
    for method in methods:
        if compensation is None:
            made = compressed(matrix, sensitivities, method)
        else:
            fitted = fitted_lut(matrix, sensitivities, method)
            made = compensated(INLINE, compensation, matrix, fitted, method)
        found.append(Choice(method, made.nbytes, made.error))
    return found


def choose(choices: Sequence[Sequence[Choice]], budget: int) -> list[Choice] | None:
    """Select one choice per layer, within `budget` bytes in total, with approximately the least sum of errors.

    None if even the smallest choices exceed the budget. Deterministic.
    """
    hulls = [_hull(each) for each in choices]
    places = [0] * len(hulls)
    left = budget - sum(hull[0].nbytes for hull in hulls)
    if left < 0:
        return None
    steps = [(_slope(hull, 0), layer) for layer, hull in enumerate(hulls) if len(hull) > 1]
    heapq.heapify(steps)
    while steps:
        _, layer = heapq.heappop(steps)
        hull, place = hulls[layer], places[layer]
        cost = hull[place + 1].nbytes - hull[place].nbytes
        if cost > left:
            continue  # this layer ends here; the next steps are of other layers
        left -= cost
        places[layer] += 1
        if place + 2 < len(hull):
            heapq.heappush(steps, (_slope(hull, place + 1), layer))
    return [hull[place] for hull, place in zip(hulls, places, strict=True)]


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices on the lower convex hull of error over bytes, in ascending bytes."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda each: (each.nbytes, each.error)):
        if hull and choice.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _gain(hull[-2], choice) >= _gain(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return hull


def _gain(smaller: Choice, larger: Choice) -> float:
    """Return the error reduction per byte."""
    return (smaller.error - larger.error) / (larger.nbytes - smaller.nbytes)


def _slope(hull: Sequence[Choice], place: int) -> float:
    return -_gain(hull[place], hull[place + 1])


def _size(layer: LinearLayer) -> int:
    rows, columns = layer.shape
    return rows * columns
