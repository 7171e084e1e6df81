"""Linear layers with lookup tables: replace a MatMul or Gemm by the operators LutMatMul and CsrMatMul."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio import interrupts
from intaglio.bundle.bundle import Calibration
from intaglio.display.progress import track
from intaglio.graph_passes.calibration.calibrate import RECORD
from intaglio.graph_passes.calibration.stream import Stream
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.lookup_tables.compensation import Compensation
from intaglio.graph_passes.lookup_tables.sparse import Sparse, gather, select_sparse
from intaglio.graph_passes.lookup_tables.tables import Table, TableBits, fit
from intaglio.graph_passes.weights.calibration_rows import load_batches
from intaglio.graph_passes.weights.gptq import second_moments
from intaglio.graph_passes.weights.group_layers import own_weights, set_weight
from intaglio.graph_passes.weights.linear_layers import LayerWriter, LinearLayer, by_weight, linear_layers
from intaglio.graph_passes.weights.options import TablePass
from intaglio.graph_passes.weights.row_blocks import row_blocks
from intaglio.plugins.bit_packing import WORD, pack
from intaglio.processes.threads import in_parallel
from intaglio.runtime.engines.engine import Array
from intaglio.sensitivity_file import Sensitivities

Floats = npt.NDArray[np.float32]

Batches: TypeAlias = list[dict[str, Array]]

BATCH = 4  # chunks of calibration text that run at a time


@dataclass(frozen=True)
class Method:
    """How to store a layer: bits of the indices, grid of the tables, and the fractions stored as a sparse matrix."""

    bits: int
    table_bits: TableBits = "auto"
    sensitive: float = 0.0
    outliers: float = 0.0


@dataclass(frozen=True)
class Compressed:
    """A layer's weight as a table and optionally a sparse matrix that is added to it.

    `error`: Σ sensitivity·difference², or `Compensation.error` if inputs are known.
    """

    table: Table
    bits: int
    sparse: Sparse | None
    error: float

    @property
    def nbytes(self) -> int:
        """The bytes of all of its arrays."""
        sparse = 0 if self.sparse is None else self.sparse.nbytes
        return self.table.indices.size * self.bits // 8 + self.table.lut.nbytes + sparse

    def weight(self, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """The weight [N, K] that it represents."""
        weight = np.empty(self.table.indices.shape, dtype)
        for part in row_blocks(weight):
            weight[part] = self.rows(part)
        return weight

    def rows(self, part: slice) -> Floats:
        """Return some rows of it."""
        weight: Floats = np.take_along_axis(self.table.lut[part], self.table.indices[part].astype(np.intp), axis=1)
        if self.sparse is not None:
            offsets = self.sparse.row_offsets[part.start : part.stop + 1]
            within = slice(offsets[0], offsets[-1])
            rows = np.repeat(np.arange(len(weight)), np.diff(offsets))
            weight[rows, self.sparse.columns[within]] += self.sparse.values[within]
        return weight


def sensitivities_of(layer: LinearLayer, sensitivities: Sensitivities | None) -> Floats:
    """[N, K] as `layer.matrix()`, in memory of its own; ones without a file."""
    if sensitivities is None:
        return np.ones(layer.shape, np.float32)
    rows, columns = layer.shape
    stored = sensitivities.read(str(layer.weight.name), (rows, columns) if layer.transposed else (columns, rows))
    return stored if layer.transposed else np.ascontiguousarray(stored.T)


def compressed(
    matrix: Floats, sensitivities: Floats, method: Method, compensation: Compensation | None = None
) -> Compressed:
    """Store the weight [N, K] by `method`; `compensation`, if given, chooses the indices.

    Weights in the sparse matrix are ignored in the clustering; their index selects the centroid nearest to 0, and
    the sparse matrix contains the difference to it, so that the sum is the weight.
    """
    places = select_sparse(matrix, sensitivities, method.sensitive, method.outliers)
    flat = sensitivities.reshape(-1)
    apart = flat[places]
    flat[places] = 0
    table = fit(matrix, sensitivities, method.bits, method.table_bits)
    flat[places] = apart
    exact = matrix.reshape(-1)[places]
    if compensation is not None:
        indices, exact = compensation.assign(matrix, table.lut, places)
        table = replace(table, indices=indices)
    sparse = None
    if method.sensitive or method.outliers:
        rows = places // matrix.shape[1]
        nearest = np.abs(table.lut).argmin(axis=1).astype(np.uint8)[rows]
        table.indices.reshape(-1)[places] = nearest
        sparse = gather(exact - table.lut[rows, nearest], places, matrix.shape)
    made = Compressed(table, method.bits, sparse, table.error)
    if compensation is None:
        return made
    known = compensation

    def cost(part: slice) -> float:
        return known.error(made.rows(part) - matrix[part], sensitivities[part])

    return replace(made, error=sum(in_parallel(cost, row_blocks(matrix))))


@dataclass(frozen=True)
class Rewriting:
    """Rewrites layers, with the settings common to all of them. `description`: label of the progress bar."""

    description: str
    activation_bits: int
    sensitivities: Sensitivities | None

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
        for group in track(groups, self.description, total=len(groups)):
            with interrupts.deferred():
                layer = group[0]
                made = compressed(layer.matrix(), sensitivities_of(layer, self.sensitivities), method_of(layer))
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
        """Store the layers in the order of the graph, so that a layer sees the outputs of compressed layers."""
        writer = LayerWriter(model)
        made: list[tuple[LinearLayer, Compressed]] = []
        for level, compensation, stream in compensated_levels(model, layers, batches, self.description):
            for layer, each in [pair for pair in made if stream.has_run(pair[0].node)]:
                _replace(writer, [layer], each, self.activation_bits)
            made = [pair for pair in made if pair[0].node.graph is not None]
            for layer in level:
                with interrupts.deferred():
                    weights = sensitivities_of(layer, self.sensitivities)
                    each = compressed(layer.matrix(), weights, method_of(layer), compensation)
                    _count(counts, layer, each)
                    if not layer.tied:
                        set_weight(layer, each.weight(layer.dtype))
                made.append((layer, each))
        for layer, each in made:
            _replace(writer, [layer], each, self.activation_bits)


def compensated_levels(
    model: ir.Model, layers: Sequence[LinearLayer], batches: Batches, description: str
) -> Iterator[tuple[list[LinearLayer], Compensation, Stream]]:
    """Yield the layers by input, in the order of the graph, with the moments of the inputs, and the progress."""
    with Stream(model, batches) as stream:
        levels = stream.levels(layers)
        for level in track(levels, description, total=len(levels)):
            yield level, Compensation(second_moments(stream.rows(level[0].x), level[0].shape[1])), stream


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
    """Replace `layers`, which share one weight, by the operators.

    packed: int32 [N, K·bits/32]; lut: float32 [N, 2**bits]; and of a sparse matrix values: float32 [nnz], columns:
    int32 [nnz], row_offsets: int32 [N + 1].
    """
    name, sparse = layers[0].name, made.sparse
    packed = writer.constant(pack(made.table.indices, made.bits), f"{name}.packed")
    lut = writer.constant(made.table.lut, f"{name}.lut")
    parts: list[ir.Value] = []
    if sparse is not None:
        parts = [
            writer.constant(sparse.values, f"{name}.sparse.values"),
            writer.constant(sparse.columns, f"{name}.sparse.columns"),
            writer.constant(sparse.row_offsets, f"{name}.sparse.row_offsets"),
        ]
    attributes = {"bits": made.bits, "K": layers[0].shape[1], "activation_bits": activation_bits}
    for layer in layers:
        product = writer.product(layer, "LutMatMul", [layer.x, packed, lut], **attributes)
        if parts:
            product = writer.product(layer, "CsrMatMul", [layer.x, *parts, product])
        layer.replace(writer, product)


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
