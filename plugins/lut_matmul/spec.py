"""LutMatMul: a linear layer whose weight is stored as 2, 3 or 4 bits for each value, indices into a table per row.

    w[n, k] = lut[n, index[n, k]]         the centroids of output row n (SqueezeLLM, section 3.3)
    y = x·wᵀ

The CPU kernels compute with x in fixed point: `activation_bits=32` keeps 24 bits of every row of x, which is what
float32 keeps of the largest; 16 keeps 16 bits, and is faster. The error of each product is then at most
2^-24 or 2^-16 of the row's largest |x|. With 8 each 512 values of a row keep 8 bits of their own largest, where the
CPU adds up four products of bytes and the tables allow it; else 16. Tables that hold (one factor of the row)·(integers
of 8 bits) are read exactly; others are rounded to 16 bits with `activation_bits` of 8 and 16, and computed with in
float32 with 32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError
from intaglio.plugins import operation_counts
from intaglio.plugins.bit_packing import WORD, unpack, unpack_body
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values
from intaglio.plugins.lut_matmul.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Given, Shape

LARGEST_K = 1 << 30  # limit of the kernels, whose sizes in bytes have 64 bits


class LutMatMul(Operator):
    """x·wᵀ with w[n, k] = lut[n, index k of row n]; `packed` holds the indices as `bit_packing` packs them."""

    signature = SIGNATURE

    def complete(self, attributes: Attributes) -> dict[str, Any]:
        """Checked: K fills whole words."""
        complete = super().complete(attributes)
        check_depth(self.name, complete["K"])
        return complete

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Check the numbers of words and table entries against K and bits."""
        super().check(inputs, attributes)
        bits, depth = attributes["bits"], attributes["K"]
        check_width(self.name, "x", inputs[0], depth, "K")
        check_width(self.name, "packed", inputs[1], depth * bits // WORD, "K·bits/32")
        check_width(self.name, "lut", inputs[2], 2**bits, "2^bits")

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: the dtype of x, computed in float64."""
        x, packed, lut = inputs
        assert x is not None and packed is not None and lut is not None
        return [product(x, table_weight(packed.view(np.int32), lut, attributes["bits"]))]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """[..., N]."""
        x, packed = inputs[0] or (None,), inputs[1] or (None,)
        return [(*x[:-1], packed[0])]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """The operations of the product."""
        return operation_counts.product(self.shapes(shapes, attributes)[0], shapes[0])

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """The weight by GatherElements, and MatMul."""
        import onnx_ir as ir

        x, packed, lut = inputs
        assert x is not None and packed is not None and lut is not None
        numbers = graph.numbers(packed, attributes["bits"])
        if numbers is not None:
            tables, index = graph.op("Transpose", lut, perm=[1, 0]), graph.cast(numbers, ir.DataType.INT32)
            return [graph.float_matmul(x, graph.op("GatherElements", tables, index, axis=0))]
        index = unpack_body(graph, packed, attributes["bits"], attributes["K"])
        return [graph.product(x, graph.op("GatherElements", lut, index, axis=1))]


OPERATOR = LutMatMul()


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
