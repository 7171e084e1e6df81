"""Linear layers with lookup tables: replace a MatMul or Gemm by the operator LutMatMul."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio import interrupts
from intaglio.bundle.bundle import Calibration
from intaglio.display.progress import track
from intaglio.executors.executor import Executor
from intaglio.graph_passes.calibration.calibrate import RECORD
from intaglio.graph_passes.calibration.stream import Stream
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.lookup_tables.compensation import Compensation
from intaglio.graph_passes.lookup_tables.compressed import Compressed, Method, compensated, compressed, fitted_lut
from intaglio.graph_passes.weights.calibration_rows import load_batches
from intaglio.graph_passes.weights.group_layers import own_weights, set_weight
from intaglio.graph_passes.weights.linear_layers import LayerWriter, LinearLayer, by_weight, linear_layers
from intaglio.graph_passes.weights.options import TablePass
from intaglio.graph_passes.weights.transposed import transposed
from intaglio.plugins.bit_packing import WORD, pack
from intaglio.runtime.engines.engine import Array
from intaglio.sensitivity_file import Sensitivities

Floats = npt.NDArray[np.float32]

Batches: TypeAlias = list[dict[str, Array]]

BATCH = 4  # chunks of calibration text that run at a time


def sensitivities_of(layer: LinearLayer, sensitivities: Sensitivities | None) -> Floats:
    """[N, K] as `layer.matrix()`, in memory of its own; ones without a file."""
    if sensitivities is None:
        return np.ones(layer.shape, np.float32)
    rows, columns = layer.shape
    stored = sensitivities.read(str(layer.weight.name), (rows, columns) if layer.transposed else (columns, rows))
    return stored if layer.transposed else transposed(stored)


@dataclass(frozen=True)
class Rewriting:
    """Rewrites layers, with the settings common to all of them. `description`: label of the progress bar."""

    description: str
    activation_bits: int
    sensitivities: Sensitivities | None
    inputs: PassInputs

    def run(
        self,
        model: ir.Model,
        layers: Sequence[LinearLayer],
        method_of: Callable[[LinearLayer], Method],
        counts: Counts,
        batches: Batches | None,
    ) -> None:
        """Store each of `layers` by its method; with `batches` of calibration text, errors are compensated."""
        if batches is None:
            self._plain(model, layers, method_of, counts)
        else:
            self._compensated(model, layers, method_of, counts, batches)
        if self.sensitivities is not None:  # for the manifest: the text that they were computed on
            seen = self.sensitivities.observed
            model.meta[RECORD] = Calibration(seen.file, seen.sha256, seen.samples, seen.tokens, "fisher")

    def _plain(
        self,
        model: ir.Model,
        layers: Sequence[LinearLayer],
        method_of: Callable[[LinearLayer], Method],
        counts: Counts,
    ) -> None:
        """Store the layers one after the other, in any order."""
        writer = LayerWriter(model)
        groups = by_weight(layers)
        known = {group[0].weight for group in groups if group[0].name in self.inputs.finished}
        tasks = (self._task(group[0], method_of) for group in groups if group[0].weight not in known)
        results = self.inputs.executor.map(compressed, tasks)
        for group in track(groups, self.description, total=len(groups)):
            layer = group[0]
            if layer.weight in known:
                made = Compressed.of(self.inputs.finished.read(layer.name))
            else:
                made = next(results)
                self.inputs.finished.put(layer.name, **made.arrays())
            with interrupts.deferred():
                _count(counts, layer, made)
                _replace(writer, group, made, self.activation_bits)

    def _compensated(
        self,
        model: ir.Model,
        layers: Sequence[LinearLayer],
        method_of: Callable[[LinearLayer], Method],
        counts: Counts,
        batches: Batches,
    ) -> None:
        """Store the layers in the order of the graph, so that a layer sees the outputs of compressed layers.

        The tables do not depend on that: they are fitted ahead.
        """
        writer = LayerWriter(model)
        made: list[tuple[LinearLayer, Compressed]] = []
        with Stream(model, batches, self.inputs.executor) as stream:
            levels = stream.levels(layers)
            finished = [all(layer.name in self.inputs.finished for layer in level) for level in levels]
            unfinished = [level for level, known in zip(levels, finished, strict=True) if not known]
            tasks = (self._task(layer, method_of) for level in unfinished for layer in level)
            fitted = self.inputs.executor.map(fitted_lut, tasks)
            for level, known in track(list(zip(levels, finished, strict=True)), self.description, total=len(levels)):
                compensation = None
                if known:
                    stream.advance(level[0].x)
                else:
                    moments = stream.second_moments(level[0].x, level[0].shape[1])
                    compensation = self.inputs.executor.share(Compensation(moments))
                    del moments
                for layer, each in [pair for pair in made if stream.has_run(pair[0].node)]:
                    _replace(writer, [layer], each, self.activation_bits)
                made = [pair for pair in made if pair[0].node.graph is not None]
                for layer in level:
                    if known:
                        stored = Compressed.of(self.inputs.finished.read(layer.name))
                    else:
                        table, matrix = next(fitted), layer.matrix()
                        stored = compensated(self.inputs.executor, compensation, matrix, table, method_of(layer))
                        self.inputs.finished.put(layer.name, **stored.arrays())
                    with interrupts.deferred():
                        _count(counts, layer, stored)
                        if not layer.tied:
                            set_weight(layer, stored.weight(layer.dtype))
                    made.append((layer, stored))
        for layer, each in made:
            _replace(writer, [layer], each, self.activation_bits)

    def _task(self, layer: LinearLayer, method_of: Callable[[LinearLayer], Method]) -> tuple[Floats, Floats, Method]:
        return layer.matrix(), sensitivities_of(layer, self.sensitivities), method_of(layer)


def compensated_levels(
    model: ir.Model, layers: Sequence[LinearLayer], batches: Batches, executor: Executor
) -> Iterator[tuple[list[LinearLayer], Compensation]]:
    """Yield the layers by input, in the order of the graph, with the moments of the inputs."""
    with Stream(model, batches, executor) as stream:
        for level in stream.levels(layers):
            yield level, Compensation(stream.second_moments(level[0].x, level[0].shape[1]))


def layers_and_batches(
    model: ir.Model, options: TablePass, inputs: PassInputs, counts: Counts, branches: bool = False
) -> tuple[list[LinearLayer], Batches | None]:
    """Return the layers that the pass with these options compresses, and the text to compensate errors on, or None.

    `branches`: as of `linear_layers`.
    """
    layers = linear_layers(model, counts, options.skip, WORD, options.tied, branches)
    if not options.compensate:
        return layers, None
    batches, model.meta[RECORD] = load_batches(options.name, inputs.calibration, options.samples, BATCH, counts)
    return own_weights(layers, counts), batches


def _replace(writer: LayerWriter, layers: Sequence[LinearLayer], made: Compressed, activation_bits: int) -> None:
    """Replace `layers`, which share one weight, by the operator.

    packed: int32 [N, K·bits/32]; lut: float32 [N, 2**bits]; and of a sparse matrix values: float32 [nnz], columns:
    int32 [nnz], row_offsets: int32 [N + 1].
    """
    name, sparse = layers[0].name, made.sparse
    packed = writer.constant(pack(made.table.indices, made.bits), f"{name}.packed")
    lut = writer.constant(made.table.lut, f"{name}.lut")
    parts = [] if sparse is None else writer.sparse(layers[0], sparse)
    attributes = {"bits": made.bits, "K": layers[0].shape[1], "activation_bits": activation_bits}
    for layer in layers:
        layer.replace(writer, writer.product(layer, "LutMatMul", [layer.x, packed, lut, *parts], **attributes))


def _count(counts: Counts, layer: LinearLayer, made: Compressed) -> None:
    """Record one more weight: its compressed bytes, its bits per weight and its error."""
    size = made.table.indices.size
    counts.add("layers")
    counts.add("weights", size)
    counts.add("bytes", made.nbytes)
    if made.sparse is not None:
        counts.add("sparse weights", made.sparse.values.size)
    measured = {"bits": 8 * made.nbytes / size, "error": made.error, "table_bits": made.table.grid}
    counts.layers[layer.name] = measured
