"""Building blocks of operators' function bodies: standard ONNX nodes, with bounds on the magnitude of their values.

Integers are computed in float64, which is exact below 2^53: ONNX Runtime (1.31) uses vector instructions for float64,
but not for 64-bit integers. Larger values are split (see `FunctionBody.rescale`), or there is only one per row, for
which 64-bit integers are fast enough.

Minimum and maximum of int64 are written as comparisons, since ONNX Runtime's Min, Max and Clip of int64 (1.31, AVX-512)
are wrong for some pairs that differ by 2^31 or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.plugins import constant_folding

Number = int | float | npt.NDArray[Any]

# Keys of `meta`, by which bodies pass information to each other while a model is inlined.
MAGNITUDE = "intaglio.magnitude"  # |value| is at most this
UNSIGNED = "intaglio.unsigned"  # of an int8 value x: x + 128 in uint8; of 16 bits in int32: x + 2^15, also in int32
FACTORS = "intaglio.factors"  # of a product x·w of floating-point numbers: x [..., K] and w [K, N]

INTEGERS = {ir.DataType.INT8: 2**7, ir.DataType.UINT8: 2**8, ir.DataType.INT16: 2**15, ir.DataType.INT32: 2**31}
FLOATS = (ir.DataType.DOUBLE, ir.DataType.FLOAT)

# Operator -> its output's dtype, or the index of the input with that dtype; the first input for all others.
DTYPES: dict[str, ir.DataType | int] = {
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less"), ir.DataType.BOOL),
    "MatMulInteger": ir.DataType.INT32,
    "Shape": ir.DataType.INT64,
    "CastLike": 1,
    "DequantizeLinear": 1,
    "Where": 1,
}
# Operator -> the magnitude of its output from those of its first two inputs; unknown for all others.
MAGNITUDES: dict[str, Callable[[float, float], float]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Floor": lambda a, _: a + 1,
    **dict.fromkeys(("Abs", "Cast", "Neg", "Reshape", "Split", "Transpose"), lambda a, _: a),
}


class BodyArithmetic:
    """Collects the nodes of a body; every method adds nodes and returns the resulting value.

    `last_axis` is the axis of reductions. It is counted from the front if the rank is known, because ONNX Runtime 1.31
    does not reduce the shape of an empty tensor if the axis is negative.
    """

    dtype = ir.DataType.DOUBLE  # of intermediate values

    def __init__(self, rank: int | None = None) -> None:
        self.nodes: list[ir.Node] = []
        self._constants: dict[ir.Value | None, npt.NDArray[Any]] = {}
        self.last_axis = -1 if rank is None else rank - 1

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a standard node and return its first output. The node is folded if its result is constant."""
        folded = constant_folding.compute(op_type, [self.known(value) for value in inputs], attributes)
        if folded is not None:
            return self.constant(folded, folded.dtype.type)
        return self._node(op_type, inputs, attributes).outputs[0]

    def split(self, x: ir.Value, parts: int, axis: int) -> tuple[ir.Value, ...]:
        """The equal `parts` of x along `axis`."""
        return tuple(self._node("Split", [x], {"axis": axis, "num_outputs": parts}, parts).outputs)

    def _node(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any], outputs: int = 1
    ) -> ir.Node:
        node = ir.node(op_type, inputs, attributes, num_outputs=outputs)
        self.nodes.append(node)
        self._describe(node)
        return node

    def _describe(self, node: ir.Node) -> None:
        """Record the dtype and the magnitude of a node's outputs."""
        rule = ir.DataType(node.attributes["to"].as_int()) if node.op_type == "Cast" else DTYPES.get(node.op_type, 0)
        like = node.inputs[rule] if not isinstance(rule, ir.DataType) and node.inputs else None
        dtype = rule if isinstance(rule, ir.DataType) else None if like is None else like.dtype
        for output in node.outputs:
            if dtype is not None:
                output.dtype = dtype
            if node.op_type in MAGNITUDES:
                sizes = [self.magnitude(value) for value in node.inputs[:2] if value is not None]
                output.meta[MAGNITUDE] = MAGNITUDES[node.op_type](sizes[0], sizes[-1])

    def constant(self, value: Number, dtype: type[np.generic] = np.int64) -> ir.Value:
        """A constant, by default of 64-bit integers."""
        array = np.asarray(value, dtype)
        output = self.stored(array)
        self._constants[output] = array
        return output

    def stored(self, array: npt.NDArray[Any]) -> ir.Value:
        """A constant that the graph stores in this dtype; computations on it are not folded."""
        output = self.op("Constant", value=ir.tensor(array))
        output.dtype = ir.DataType.from_numpy(array.dtype)
        return output

    def known(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        """The array of a small constant, created here or in the graph; None for anything else."""
        return self._constants[value] if value in self._constants else constant_folding.known(value)

    def fixed(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        """The array of a constant of the graph, of any size; None if an input can override it, or for other values."""
        return constant_folding.known(value, largest=None)

    def magnitude(self, value: ir.Value | Number) -> float:
        """The largest |value| of a constant, or the bound known for a value; infinite if unknown."""
        array = self.known(value) if isinstance(value, ir.Value) else np.asarray(value)
        if array is not None:
            return float(np.abs(array.astype(np.float64)).max(initial=0))
        assert isinstance(value, ir.Value)
        stated = value.meta.get(MAGNITUDE, math.inf)
        return min(float(stated), INTEGERS.get(value.dtype, math.inf) if value.dtype is not None else math.inf)

    def bounded(self, x: ir.Value, magnitude: float) -> ir.Value:
        """`x`, of which |x| <= `magnitude` is known."""
        x.meta[MAGNITUDE] = magnitude
        return x

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`x` in another dtype."""
        if x.dtype == dtype:
            return x
        return self.op("Cast", x, to=dtype)

    def wide(self, x: ir.Value) -> ir.Value:
        """`x` in the dtype of intermediate values."""
        return self.cast(x, self.dtype)

    def add(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """a + b."""
        return self.arithmetic("Add", a, b)

    def subtract(self, a: ir.Value | Number, b: ir.Value | Number) -> ir.Value:
        """a - b."""
        return self.arithmetic("Sub", a, b)

    def multiply(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """a·b."""
        return self.arithmetic("Mul", a, b)

    def divide(self, a: ir.Value | Number, b: ir.Value | Number) -> ir.Value:
        """a / b rounded down, for a >= 0 and b > 0; exact in float64 where the quotient times b is below 2^53."""
        quotient = self.arithmetic("Div", a, b)
        return self.floor(quotient) if quotient.dtype in FLOATS else quotient

    def floor(self, x: ir.Value) -> ir.Value:
        """The largest integer that is not above x."""
        return self.op("Floor", x)

    def round(self, x: ir.Value) -> ir.Value:
        """The nearest integer, halves up."""
        return self.floor(self.add(x, 0.5))

    def minimum(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """The element-wise minimum."""
        other = self.value(b, a)
        if a.dtype == ir.DataType.INT64:
            return self.choose(self.at_least(a, other), other, a)
        return self.op("Min", a, other)

    def maximum(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """The element-wise maximum."""
        other = self.value(b, a)
        if a.dtype == ir.DataType.INT64:
            return self.choose(self.at_least(a, other), a, other)
        return self.op("Max", a, other)

    def clip(self, x: ir.Value, bounds: tuple[int, int]) -> ir.Value:
        """x limited to `bounds`, both included."""
        if x.dtype == ir.DataType.INT64 or self.known(x) is not None:
            return self.minimum(self.maximum(x, bounds[0]), bounds[1])
        if self.magnitude(x) <= min(-bounds[0], bounds[1]):
            return x
        output = self.op("Clip", x, self.value(bounds[0], x), self.value(bounds[1], x))
        output.meta[MAGNITUDE] = max(-bounds[0], bounds[1])
        return output

    def choose(self, condition: ir.Value, yes: ir.Value | Number, no: ir.Value | Number) -> ir.Value:
        """yes where the condition holds, else no."""
        like = next((value for value in (yes, no) if isinstance(value, ir.Value)), None)
        return self.op("Where", condition, self.value(yes, like), self.value(no, like))

    def at_least(self, x: ir.Value, limit: ir.Value | Number) -> ir.Value:
        """x >= limit, as booleans."""
        return self.op("GreaterOrEqual", x, self.value(limit, x))

    def sum(self, x: ir.Value) -> ir.Value:
        """The sum over the last axis, which stays with length 1."""
        return self.reduce("ReduceSum", x)

    def largest(self, x: ir.Value) -> ir.Value:
        """The largest over the last axis, which stays with length 1; not of int64."""
        return self.reduce("ReduceMax", x)

    def reduce(self, op_type: str, x: ir.Value) -> ir.Value:
        """A reduction over the last axis, which stays with length 1."""
        return self.op(op_type, x, self.constant(np.array([self.last_axis])), keepdims=1)

    def look_up(self, table: npt.NDArray[Any], index: ir.Value) -> ir.Value:
        """table[index], in the dtype of the table; by GatherElements, ten times as fast as Gather of single numbers."""
        flat = self.op("Reshape", self.cast(index, ir.DataType.INT32), self.constant(np.array([-1])))
        found = self.op("GatherElements", self.constant(table, table.dtype.type), flat, axis=0)
        return self.op("Reshape", found, self.op("Shape", index), allowzero=1)

    def arithmetic(self, op_type: str, a: ir.Value | Number, b: ir.Value | Number) -> ir.Value:
        """A node of two inputs; a number becomes a constant of the dtype of the other one."""
        like = next((value for value in (a, b) if isinstance(value, ir.Value)), None)
        return self.op(op_type, self.value(a, like), self.value(b, like))

    def value(self, x: ir.Value | Number, like: ir.Value | None = None) -> ir.Value:
        """`x`, a number as a constant of the dtype of `like`, or of the one that is computed with."""
        if isinstance(x, ir.Value):
            return x
        dtype = self.dtype if like is None or like.dtype is None else like.dtype
        return self.constant(x, dtype.numpy().type)
