"""Read and write graphs in Q/DQ form, where each integer tensor is represented as QuantizeLinear → DequantizeLinear.

A pass that converts an operator to integers reads the DequantizeLinear nodes before it and the QuantizeLinear nodes
after it, computes the integer factors from their scales, and replaces all three by one integer node.
Tensors of 8 bits are int8. Values of 16 bits are int16 between Q and DQ, and int32 as outputs of our operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.errors import GraphError
from intaglio.graph_passes.graphs import Names, add_initializer, constant, remove_if_dead
from intaglio.plugins import DOMAIN, OPS
from intaglio.plugins.integer_math import dyadic
from intaglio.plugins.nodes import check, lengths
from intaglio.plugins.registry import VERSION

Scale = npt.NDArray[np.float64]  # one number, or one per channel of the last axis

BITS = {ir.DataType.INT8: 8, ir.DataType.INT16: 16, ir.DataType.INT32: 16}
DTYPES = {8: ir.DataType.INT8, 16: ir.DataType.INT16}
SHORT = 15  # bits of a multiplier for 16-bit values: their product fits into 32 bits, which kernels rely on
LAYOUT = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"}


@dataclass(frozen=True)
class Quantized:
    """An integer tensor, its scale, and the integer that stands for 0: the inputs of a DequantizeLinear."""

    integers: ir.Value
    scale: Scale
    bits: int
    zero_point: int = 0

    @property
    def per_tensor(self) -> float | None:
        """The single scale; None with one scale per channel."""
        return float(self.scale.reshape(-1)[0]) if self.scale.size == 1 else None


@dataclass(frozen=True)
class Quantizer:
    """A QuantizeLinear that uses a value, with its scale relative to that value, and the integer that stands for 0."""

    node: ir.Node
    scale: Scale
    bits: int
    zero_point: int = 0


class Writer:
    """Adds nodes and constants with descriptive names to a model."""

    def __init__(self, model: ir.Model):
        self.model = model
        self.names = Names(model)

    def constant(self, array: npt.NDArray[Any], name: str) -> ir.Value:
        """Add an initializer."""
        return add_initializer(self.model, self.names.new(name), array)

    def node(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        domain: str = "",
        outputs: int = 1,
        **attributes: Any,
    ) -> ir.Node:
        """Insert a node before another one; its first output has its name, the others are named after it."""
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs, name=self.names.new(name))
        for index, output in enumerate(node.outputs):
            output.name = node.name if index == 0 else self.names.new(f"{node.name}_{index}")
        assert before.graph is not None
        before.graph.insert_before(before, node)
        return node

    def integer(
        self, before: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], like: ir.Value, **attributes: Any
    ) -> ir.Node:
        """Insert one of our operators before `before`, with the name and shape of the value that it replaces."""
        self.model.graph.opset_imports[DOMAIN] = VERSION
        operator = OPS[op_type]
        inputs = list(inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        padded, complete = operator.padded(inputs), operator.complete(attributes)
        outputs = operator.outputs([None if value is None else lengths(value) for value in padded], complete)
        try:
            check(operator, padded, complete)
        except GraphError as error:
            raise GraphError(f"{like.name}: {error}") from error
        node = self.node(before, op_type, inputs, f"{like.name}_{op_type}", DOMAIN, len(outputs), **attributes)
        for value, output in zip(node.outputs, outputs, strict=True):
            value.dtype = ir.DataType.from_numpy(np.dtype(output.dtype))
            value.shape = ir.Shape(like.shape) if like.shape is not None else None
        return node

    def dyadics(self, real: npt.ArrayLike, name: str, bits: int = 31) -> tuple[ir.Value, ir.Value]:
        """Add constants `multiplier`, of `bits`, and `shift` for one factor or one per channel. Raises `GraphError`."""
        pairs = [dyadic(float(factor), bits) for factor in np.asarray(real, np.float64).reshape(-1)]
        multiplier, shift = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
        return self.constant(multiplier, f"{name}.multiplier"), self.constant(shift, f"{name}.shift")

    def int32(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """Return `value` as int32, with a Cast if needed: 16-bit outputs of QuantizeLinear are int16."""
        if value.dtype == ir.DataType.INT32:
            return value
        cast = self.node(before, "Cast", [value], f"{value.name}_int32", to=ir.DataType.INT32).outputs[0]
        cast.dtype, cast.shape = ir.DataType.INT32, value.shape
        return cast

    def quantize_dequantize(
        self, value: ir.Value, scale: npt.NDArray[np.float32], bits: int, zero_point: int = 0
    ) -> ir.Value:
        """Round a value to integers of `bits`, by two new nodes right after its producer; return the result."""
        name = f"{value.name}_int{bits}"
        constants = [self.constant(scale, f"{name}.scale")]
        if zero_point:
            constants.append(
                self.constant(np.full(scale.shape, zero_point, DTYPES[bits].numpy()), f"{name}.zero_point")
            )
        axis = {"axis": -1} if scale.ndim else {}
        attributes = {**axis, "output_dtype": int(DTYPES[bits])}
        quantize = ir.node("QuantizeLinear", [value, *constants], attributes, name=self.names.new(name))
        rounded = quantize.outputs[0]
        back = ir.node("DequantizeLinear", [rounded, *constants], axis, name=self.names.new(f"{name}_back"))
        producer = value.producer()
        if producer is None:  # an input of the graph
            self.model.graph.insert_before(self.model.graph[0], [quantize, back])
        else:
            assert producer.graph is not None
            producer.graph.insert_after(producer, [quantize, back])
        for node in (quantize, back):
            node.outputs[0].name = node.name
            node.outputs[0].shape = value.shape
        rounded.dtype = DTYPES[bits]
        back.outputs[0].type = value.type
        return back.outputs[0]


def quantized(value: ir.Value | None, zero_points: bool = False) -> Quantized | None:
    """Return the integers of a value, if it is the output of a DequantizeLinear; a zero point only where one may be."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain != "":
        return None
    integers, scale, zero_point = node.inputs[0], constant(node.inputs[1]), _zero_point(node, zero_points)
    if integers is None or integers.dtype not in BITS or scale is None or zero_point is None:
        return None
    return Quantized(integers, scale.numpy().astype(np.float64), BITS[integers.dtype], zero_point)


def _zero_point(node: ir.Node, wanted: bool) -> int | None:
    """Return that of a QuantizeLinear or DequantizeLinear; None for what is no constant, or not wanted."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return 0
    zero_point = constant(node.inputs[2])
    return int(zero_point.numpy()) if wanted and zero_point is not None and zero_point.size == 1 else None


def quantizers(value: ir.Value, zero_points: bool = False) -> list[Quantizer] | str:
    """Return every QuantizeLinear that uses the value, directly or after a Mul with constants; or the reason why not.

    round(x·m / s) is round(x / (s/m)), so a factor per channel before a QuantizeLinear becomes part of its scale.
    """
    found: list[Quantizer] = []
    if value.is_graph_output():
        return f"{value.name} is an output of the graph"
    for node, _ in value.uses():
        if node.op_type == "QuantizeLinear" and node.domain == "":
            scale, dtype, zero_point = constant(node.inputs[1]), node.outputs[0].dtype, _zero_point(node, zero_points)
            if scale is None or dtype not in BITS or zero_point is None:
                return f"{node.name} has no constant scale, or a zero point"
            found.append(Quantizer(node, scale.numpy().astype(np.float64), BITS[dtype], zero_point))
        elif (factors := channel_factors(node, value)) is not None:
            scaled = quantizers(node.outputs[0], zero_points)
            if isinstance(scaled, str):
                return scaled
            found += [replace(each, scale=each.scale / factors) for each in scaled]
        else:
            return f"{value.name} is used by {node.op_type} {node.name}, which is not integer"
    return found or f"{value.name} is not used"


def channel_factors(node: ir.Node, value: ir.Value) -> Scale | None:
    """Return the constants, one per channel and all positive, that a Mul multiplies `value` with; None otherwise."""
    if node.op_type != "Mul" or node.domain != "":
        return None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    tensor = constant(other)
    if tensor is None or len(tensor.shape) > 1 or not (factors := tensor.numpy().astype(np.float64)).min() > 0:
        return None
    return factors


def give(integers: ir.Value, consumers: Sequence[Quantizer]) -> None:
    """Replace the outputs of these QuantizeLinear nodes by `integers`, and remove unused nodes."""
    for consumer in consumers:
        consumer.node.outputs[0].replace_all_uses_with(integers)
        remove_if_dead(consumer.node)
