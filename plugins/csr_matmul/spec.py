"""CsrMatMul: the product with a sparse matrix, added to y: y + x·Sᵀ.

S [N, K] holds the outliers and the sensitive values that dense-and-sparse decomposition takes out of a weight
(SqueezeLLM, section 3.3), in compressed sparse rows: row n has the values `values[row_offsets[n]:row_offsets[n + 1]]`
in the columns `columns[…]` of the same range, which are distinct.

Where the dense product is LutMatMul, that operator takes S itself. This one is for products with zeros, which
`prune_magnitude` leaves, and for bundles in which the sparse values stand beside LutMatMul in a node of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError
from intaglio.plugins import operation_counts
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values
from intaglio.plugins.csr_matmul.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Given, Shape

if TYPE_CHECKING:
    import onnx_ir as ir


class CsrMatMul(Operator):
    """y + x·Sᵀ."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Offsets ascend from 0 to the number of values, one row for each channel of y; columns are in x."""
        super().check(inputs, attributes)
        x, *sparse, y = inputs
        if x is not None and y is not None and x.shape is not None and y.shape is not None:
            _check_leading(self.name, x.shape[:-1], y.shape[:-1])
        check_sparse(self.name, sparse, _width(y), _width(x))

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[the sum]: the dtype of y, computed in float64."""
        x, values, columns, row_offsets, y = inputs
        assert x is not None and values is not None and columns is not None and y is not None
        assert row_offsets is not None
        weight = sparse_weight(values, columns, row_offsets, x.shape[-1])
        return [(y.astype(np.float64) + x.astype(np.float64) @ weight.T).astype(y.dtype)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The shape of y."""
        return [inputs[4] or ()]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """A product for each value and row of x."""
        return operation_counts.sparse_product(shapes[0], shapes[1])

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """S as a dense matrix by ScatterND, and MatMul; where y is x·w itself, one product with w + Sᵀ."""
        x, values, columns, row_offsets, y = inputs
        assert x is not None and values is not None and columns is not None and row_offsets is not None
        assert y is not None
        weight = graph.other_factor(y, x)
        if weight is not None:
            return [graph.float_matmul(x, add_sparse(graph, weight, values, columns, row_offsets))]
        rows = _row_numbers(graph, row_offsets, values)
        shape = graph.op("Concat", graph.op("Shape", y, start=-1), graph.op("Shape", x, start=-1), axis=0)
        zero = graph.cast_like(graph.constant(0.0, np.float32), values)
        # Without `reduction`, which TensorRT's parser does not support.
        dense = graph.op("ScatterND", graph.op("Expand", zero, shape), _places(graph, rows, columns), values)
        return [graph.op("Add", y, graph.product(x, dense))]


OPERATOR = CsrMatMul()


def add_sparse(graph: Body, weight: ir.Value, values: ir.Value, columns: ir.Value, row_offsets: ir.Value) -> ir.Value:
    """A dense weight [K, N] with Sᵀ added, by GatherND and ScatterND: the columns of a row are distinct."""
    places = _places(graph, columns, _row_numbers(graph, row_offsets, values))
    added = graph.op("Add", graph.op("GatherND", weight, places), graph.cast_like(values, weight))
    return graph.op("ScatterND", weight, places, added)


def _places(graph: Body, *axes: ir.Value) -> ir.Value:
    """The places of the values in a matrix, int64 [nnz, 2], from those in each of its axes: [nnz], or [nnz, 1]."""
    import onnx_ir as ir

    column = graph.constant(np.array([-1, 1]))
    wide = [graph.op("Reshape", graph.cast(axis, ir.DataType.INT64), column) for axis in axes]
    return graph.op("Concat", *wide, axis=1)


def _row_numbers(graph: Body, row_offsets: ir.Value, values: ir.Value) -> ir.Value:
    """The row of each value, [nnz] or [nnz, 1]; in integers in every body, being an index.

    Of a constant matrix they are a constant. Otherwise the row is how many rows have ended before a value, counted in
    a matrix [nnz, N].
    """
    import onnx_ir as ir

    offsets = graph.fixed(row_offsets)
    if offsets is not None:
        return graph.constant(_rows(offsets), np.int32)
    one = graph.constant(np.array([1]))
    ends = graph.op("Slice", graph.cast(row_offsets, ir.DataType.INT64), one, graph.constant(np.array([2**31 - 1])))
    count = graph.op("Squeeze", graph.op("Shape", values))
    numbers = graph.op("Range", graph.constant(0), count, graph.constant(1))
    ended = graph.op("GreaterOrEqual", graph.op("Unsqueeze", numbers, one), ends)
    return graph.op("ReduceSum", graph.cast(ended, ir.DataType.INT64), one, keepdims=1)


def _rows(row_offsets: Array) -> npt.NDArray[np.int64]:
    offsets = row_offsets.astype(np.int64)
    return np.repeat(np.arange(len(offsets) - 1), offsets[1:] - offsets[:-1])


def sparse_weight(values: Array, columns: Array, row_offsets: Array, depth: int) -> npt.NDArray[np.float64]:
    """S as a dense float64 matrix [N, depth]."""
    rows = _rows(row_offsets)
    weight = np.zeros((len(row_offsets) - 1, depth))
    np.add.at(weight, (rows, columns.astype(np.int64)), values.astype(np.float64))
    return weight


def check_sparse(name: str, sparse: Sequence[Given | None], rows: int | str | None, depth: int | str | None) -> None:
    """Raise `GraphError` if S is not [rows, depth], as far as known: `sparse` are its values, columns and offsets."""
    values, columns, row_offsets = sparse
    entries = _width(row_offsets)
    if entries is not None and isinstance(rows, int) and entries != rows + 1:
        raise GraphError(f"{name}: input row_offsets has {entries} entries, expected {rows + 1} (N+1).")
    if row_offsets is not None and row_offsets.values is not None:
        _check_offsets(name, row_offsets.values, _width(values))
    if columns is not None and columns.values is not None and isinstance(depth, int):
        _check_columns(name, columns.values, depth)


def _width(given: Given | None) -> int | None:
    width = given.shape[-1] if given is not None and given.shape else None
    return width if isinstance(width, int) else None


def _check_leading(name: str, x: Shape, y: Shape) -> None:
    differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(x, y, strict=False))
    if len(x) != len(y) or differ:
        raise GraphError(f"{name}: inputs x and y have leading axes {list(x)} and {list(y)}, expected the same.")


def _check_offsets(name: str, given: Array, count: int | None) -> None:
    offsets = given.astype(np.int64)
    ends = offsets.size > 0 and offsets[0] == 0 and count in (None, offsets[-1])
    if not ends or (np.diff(offsets) < 0).any():
        raise GraphError(f"{name}: row_offsets do not ascend from 0 to the {count} values. Build the matrix again.")


def _check_columns(name: str, given: Array, depth: int) -> None:
    columns = given.astype(np.int64)
    outside = columns[(columns < 0) | (columns >= depth)]
    if outside.size:
        raise GraphError(f"{name}: column {outside[0]}, expected 0 to {depth - 1}, x having {depth} channels.")
