"""Linear layers with lookup tables: the operators LutMatMul and CsrMatMul in the place of a MatMul or Gemm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio import interrupts
from intaglio.bundle import Calibration
from intaglio.errors import GraphError
from intaglio.graph_passes.calibrate import RECORD
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.weights.linear_layers import LayerWriter, LinearLayer
from intaglio.graph_passes.weights.sparse import Sparse, gather, set_aside
from intaglio.graph_passes.weights.tables import Table, TableBits, fit
from intaglio.plugins.bit_packing import pack
from intaglio.progress import track
from intaglio.sensitivity_file import Sensitivities

Floats = npt.NDArray[np.float32]

BITS = (2, 3, 4)


@dataclass(frozen=True)
class Method:
    """How a layer is to be stored: bits of the indices, grid of the tables, and the parts that are kept apart."""

    bits: int
    table_bits: TableBits = "auto"
    sensitive: float = 0.0
    outliers: float = 0.0

    def check(self, name: str) -> None:
        """Raise `GraphError` for options of the pass `name` that are out of range."""
        if self.bits not in BITS:
            raise GraphError(f"{name}: bits {self.bits}: expected one of {', '.join(map(str, BITS))}.")
        for option in ("sensitive", "outliers"):
            if not 0 <= getattr(self, option) <= 0.5:
                raise GraphError(
                    f"{name}: {option} {getattr(self, option)}: expected a part of all weights from 0 to 0.5, "
                    "such as 0.0005."
                )


@dataclass(frozen=True)
class Compressed:
    """A layer's weight as a table and, where a part is kept apart, a sparse matrix that is added to it."""

    table: Table
    bits: int
    sparse: Sparse | None

    @property
    def nbytes(self) -> int:
        """What all of its arrays take."""
        sparse = 0 if self.sparse is None else self.sparse.nbytes
        return self.table.indices.size * self.bits // 8 + self.table.lut.nbytes + sparse


def given_sensitivities(name: str, sensitivities: Sensitivities | None, unweighted: bool) -> Sensitivities | None:
    """What the pass `name` is to use. Raises `GraphError` where it has none and is not told to do without."""
    if unweighted:
        return None
    if sensitivities is None:
        raise GraphError(f"{name}: has no sensitivities. Give a file of intaglio sensitivity, or set unweighted: true.")
    return sensitivities


def sensitivities_of(layer: LinearLayer, sensitivities: Sensitivities | None) -> Floats:
    """[N, K] as `layer.matrix()`, in memory of its own; ones without a file."""
    if sensitivities is None:
        return np.ones(layer.shape, np.float32)
    rows, columns = layer.shape
    stored = sensitivities.read(str(layer.weight.name), (rows, columns) if layer.transposed else (columns, rows))
    return stored if layer.transposed else np.ascontiguousarray(stored.T)


def compressed(matrix: Floats, sensitivities: Floats, method: Method) -> Compressed:
    """The weight [N, K] stored by `method`.

    What is kept apart weighs nothing in the clustering; its index is that of the centroid next to 0, and the sparse
    matrix holds the difference to it, so that the sum is the weight.
    """
    if not (method.sensitive or method.outliers):
        return Compressed(fit(matrix, sensitivities, method.bits, method.table_bits), method.bits, None)
    places = set_aside(matrix, sensitivities, method.sensitive, method.outliers)
    flat = sensitivities.reshape(-1)
    apart = flat[places]
    flat[places] = 0
    table = fit(matrix, sensitivities, method.bits, method.table_bits)
    flat[places] = apart
    rows = places // matrix.shape[1]
    nearest = np.abs(table.lut).argmin(axis=1).astype(np.uint8)[rows]
    table.indices.reshape(-1)[places] = nearest
    differences = matrix.reshape(-1)[places] - table.lut[rows, nearest]
    return Compressed(table, method.bits, gather(differences, places, matrix.shape))


def rewrite(
    model: ir.Model,
    layers: Sequence[LinearLayer],
    method_of: Callable[[LinearLayer], Method],
    sensitivities: Sensitivities | None,
    activation_bits: int,
    counts: Counts,
    description: str,
) -> None:
    """Store each of `layers` by its method, one after the other, while a bar with `description` shows how many are."""
    writer = LayerWriter(model)
    groups = by_weight(layers)
    for group in track(groups, description, total=len(groups)):
        with interrupts.deferred():
            layer = group[0]
            made = compressed(layer.matrix(), sensitivities_of(layer, sensitivities), method_of(layer))
            _replace(writer, group, made, activation_bits)
            _count(counts, layer, made)
    if sensitivities is not None:  # what the manifest is to say of the text that they were computed on
        seen = sensitivities.observed
        model.meta[RECORD] = Calibration(seen.file, seen.sha256, seen.samples, seen.tokens, "fisher")


def by_weight(layers: Sequence[LinearLayer]) -> list[list[LinearLayer]]:
    """The layers, those together that multiply by the same matrix."""
    groups: dict[tuple[ir.Value, bool], list[LinearLayer]] = {}
    for layer in layers:
        groups.setdefault((layer.weight, layer.transposed), []).append(layer)
    return list(groups.values())


def _replace(writer: LayerWriter, layers: Sequence[LinearLayer], made: Compressed, activation_bits: int) -> None:
    """Put the operators in the place of `layers`, which have the same weight.

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
    """Note one more weight: the bytes that it now takes, its bits per weight and its error."""
    size = made.table.indices.size
    counts.add("layers")
    counts.add("weights", size)
    counts.add("bytes", made.nbytes)
    if made.sparse is not None:
        counts.add("sparse weights", made.sparse.values.size)
    measured = {"bits": 8 * made.nbytes / size, "error": made.table.error, "table_bits": made.table.grid}
    counts.layers[layer.name] = measured
