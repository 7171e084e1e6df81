"""LutMatMul: a linear layer whose weight is stored as 2, 3 or 4 bits for each value, indices into a table per row.

    w[n, k] = lut[n, index[n, k]]         the centroids of output row n (SqueezeLLM, section 3.3)
    y = x·wᵀ
    y = x·wᵀ + x·Sᵀ                       with `values`, `columns`, `row_offsets`

S [N, K] holds the outliers and the sensitive values in compressed sparse rows, as in CsrMatMul.

The CPU kernels compute with x in fixed point: `activation_bits=32` keeps 24 bits of every row of x, which is what
float32 keeps of the largest; 16 keeps 16 bits, and is faster. The error of each product is then at most
2^-24 or 2^-16 of the row's largest |x|. With 8 each 512 values of a row keep 8 bits of their own largest, where the
CPU adds up four products of bytes and the tables allow it; else 16. Tables that hold (one factor of the row)·(integers
of 8 bits) are read exactly; others are rounded to 16 bits with `activation_bits` of 8 and 16, and computed with in
float32 with 32. The sparse values are multiplied by x itself, in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError
from intaglio.plugins import operation_counts
from intaglio.plugins.bit_packing import WORD, unpack, unpack_body
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values
from intaglio.plugins.csr_matmul.spec import add_sparse, check_sparse, sparse_weight
from intaglio.plugins.lut_matmul.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Given, Shape

if TYPE_CHECKING:
    import onnx_ir as ir

LARGEST_K = 1 << 30  # limit of the kernels, whose sizes in bytes have 64 bits


class LutMatMul(Operator):
    """x·(w + S)ᵀ with w[n, k] = lut[n, index k of row n]; `packed` holds the indices as `bit_packing` packs them."""

    signature = SIGNATURE

    def complete(self, attributes: Attributes) -> dict[str, Any]:
        """Checked: K fills whole words."""
        complete = super().complete(attributes)
        check_depth(self.name, complete["K"])
        return complete

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Check the numbers of words and table entries against K and bits, and that S is [N, K]."""
        super().check(inputs, attributes)
        bits, depth = attributes["bits"], attributes["K"]
        check_width(self.name, "x", inputs[0], depth, "K")
        check_width(self.name, "packed", inputs[1], depth * bits // WORD, "K·bits/32")
        check_width(self.name, "lut", inputs[2], 2**bits, "2^bits")
        packed = inputs[1]
        check_sparse(self.name, inputs[3:], packed.shape[0] if packed is not None and packed.shape else None, depth)

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: the dtype of x, computed in float64."""
        x, packed, lut, values, columns, row_offsets = inputs
        assert x is not None and packed is not None and lut is not None
        weight = table_weight(packed.view(np.int32), lut, attributes["bits"]).astype(np.float64)
        if values is not None and columns is not None and row_offsets is not None:
            weight = weight + sparse_weight(values, columns, row_offsets, attributes["K"])
        return [product(x, weight)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """[..., N]."""
        x, packed = inputs[0] or (None,), inputs[1] or (None,)
        return [(*x[:-1], packed[0])]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """The operations of the product, and those of the sparse values."""
        dense = operation_counts.product(self.shapes(shapes, attributes)[0], shapes[0])
        return dense + (0 if shapes[3] is None else operation_counts.sparse_product(shapes[0], shapes[3]))

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """The weight by GatherElements, the sparse values added to it, and MatMul."""
        x, packed, lut, values, columns, row_offsets = inputs
        assert x is not None and packed is not None and lut is not None
        weight = _weight(graph, packed, lut, attributes)
        if values is not None and columns is not None and row_offsets is not None:
            weight = add_sparse(graph, graph.cast_like(weight, x), values, columns, row_offsets)
        return [graph.float_matmul(x, weight)]


OPERATOR = LutMatMul()


def _weight(graph: Body, packed: ir.Value, lut: ir.Value, attributes: Attributes) -> ir.Value:
    """w as a dense matrix [K, N]."""
    import onnx_ir as ir

    numbers = graph.numbers(packed, attributes["bits"])
    if numbers is not None:
        tables, index = graph.op("Transpose", lut, perm=[1, 0]), graph.cast(numbers, ir.DataType.INT32)
        return graph.op("GatherElements", tables, index, axis=0)
    index = unpack_body(graph, packed, attributes["bits"], attributes["K"])
    return graph.op("Transpose", graph.op("GatherElements", lut, index, axis=1), perm=[1, 0])


def table_weight(packed: npt.NDArray[np.int32], lut: Array, bits: int) -> Array:
    """The weight [N, K] from indices and tables, in the dtype of the tables."""
    weight: Array = np.take_along_axis(lut, unpack(packed, bits).astype(np.int64), axis=1)
    return weight


def product(x: Array, weight: Array) -> Array:
    """x [..., K] times the transpose of weight [N, K]: computed in float64, as x's dtype."""
    y: Array = (x.astype(np.float64) @ weight.astype(np.float64).T).astype(x.dtype)
    return y


def check_depth(name: str, depth: int) -> None:
    """Raise `GraphError` unless rows of `depth` numbers fill whole words."""
    if not 0 <= depth <= LARGEST_K or depth % WORD:
        raise GraphError(
            f"{name}: K={depth}, expected a multiple of {WORD}, at most 2^30. Pad the weight, or leave this layer out."
        )


def check_width(name: str, what: str, given: Given | None, expected: int, formula: str) -> None:
    """Raise `GraphError` if the last axis of an input is known and does not match the attributes."""
    width = given.shape[-1] if given is not None and given.shape else expected
    if isinstance(width, int) and width != expected:
        raise GraphError(f"{name}: input {what} has {width} columns, expected {expected} ({formula}).")
