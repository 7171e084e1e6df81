"""PruneMagnitude: set the weights of linear layers with the smallest magnitudes to 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from intaglio import interrupts
from intaglio.display.progress import track
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.graphs import infer_shapes
from intaglio.graph_passes.lookup_tables.sparse import Sparse, gather
from intaglio.graph_passes.pruning.smallest import Threshold, of_all, of_one
from intaglio.graph_passes.weights.group_layers import set_weight
from intaglio.graph_passes.weights.linear_layers import LayerWriter, LinearLayer, by_weight, linear_layers
from intaglio.graph_passes.weights.options import PruningPass
from intaglio.graph_passes.weights.uniform import Floats


@dataclass(frozen=True)
class PruneMagnitude(PruningPass):
    """Set a `fraction` of the weights to 0: those of the smallest magnitude.

    1. `threshold="layer"`: the fraction of each layer, as "Exploring Methods for Efficient Large Language Model
       Inference", section 2.2; "global": of all layers together, so that some lose more than others.
    2. If compressed sparse rows take fewer bytes than the matrix, x·Wᵀ becomes CsrMatMul; otherwise the zeros stay in
       the matrix, which saves no space. `sparse: never` keeps all zeros in the matrices.
    3. Left: layers that match a pattern of `skip`, and tied embeddings.

    Raises `GraphError` for weights that are NaN or infinite, and for a pattern that names no layer.
    """

    name: ClassVar[str] = "prune_magnitude"
    threshold: Literal["layer", "global"] = "layer"
    sparse: Literal["where smaller", "never"] = "where smaller"

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        infer_shapes(model)
        groups = by_weight(linear_layers(model, counts, self.skip, branches=True))
        common = self._common([group[0] for group in groups]) if self.threshold == "global" else None
        writer = LayerWriter(model)
        for group in track(groups, self.name, total=len(groups)):
            with interrupts.deferred():
                matrix = group[0].matrix()
                threshold = common or of_one(matrix, round(self.fraction * matrix.size))
                matrix[threshold.smallest(matrix)] = 0
                self._store(writer, group, matrix, counts)

    def _common(self, layers: Sequence[LinearLayer]) -> Threshold:
        number = round(self.fraction * sum(layer.shape[0] * layer.shape[1] for layer in layers))
        return of_all([(layer.matrix() for layer in layers) for _ in range(2)], number)

    def _store(self, writer: LayerWriter, layers: Sequence[LinearLayer], matrix: Floats, counts: Counts) -> None:
        zeros = int(matrix.size - np.count_nonzero(matrix))
        counts.add("layers")
        counts.add("weights", matrix.size)
        counts.add("zeros", zeros)
        counts.layers[layers[0].name] = {"zeros": zeros / matrix.size}
        dense = layers[0].weight.const_value
        assert dense is not None
        sparse = compressed_rows(matrix) if self.sparse != "never" and _bytes(matrix) < dense.nbytes else None
        if sparse is None:
            set_weight(layers[0], matrix)
            return
        counts.add("layers in sparse rows")
        emit_sparse(writer, layers, sparse)


def compressed_rows(matrix: Floats) -> Sparse:
    """Return the nonzero numbers of `matrix` [N, K]."""
    places = np.flatnonzero(matrix)
    return gather(matrix.reshape(-1)[places], places, matrix.shape)


def emit_sparse(writer: LayerWriter, layers: Sequence[LinearLayer], sparse: Sparse) -> None:
    """Replace `layers`, which share one weight, by CsrMatMul nodes, which add to zeros."""
    parts = writer.sparse(layers[0], sparse)
    for layer in layers:
        zeros = _zeros(writer, layer)
        layer.replace(writer, writer.product(layer, "CsrMatMul", [layer.x, *parts, zeros]))


def _zeros(writer: LayerWriter, layer: LinearLayer) -> ir.Value:
    """Insert zeros with the shape and the dtype of the layer's output."""
    name, node = layer.name, layer.node
    x = layer.x
    assert x.dtype is not None
    leading = writer.node(node, "Shape", [x], f"{name}.leading", start=0, end=-1).outputs[0]
    width = writer.constant(np.array([layer.shape[0]]), f"{name}.width")
    shape = writer.node(node, "Concat", [leading, width], f"{name}.shape", axis=0).outputs[0]
    zero = ir.tensor(np.zeros(1, x.dtype.numpy()))
    zeros = writer.node(node, "ConstantOfShape", [shape], f"{name}.zeros", value=zero).outputs[0]
    zeros.type, zeros.shape = x.type, node.outputs[0].shape
    return zeros


def _bytes(matrix: Floats) -> int:
    """Return the bytes of the nonzero numbers in compressed sparse rows."""
    return 8 * int(np.count_nonzero(matrix)) + 4 * (len(matrix) + 1)
