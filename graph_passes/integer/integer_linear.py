"""IntegerLinear: replace matrix products with constant weights, with bias and a following GELU, by IntLinear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.calibration.activation_statistics import statistics_of
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant
from intaglio.graph_passes.integer.correct_biases import KEY, FloatMeans
from intaglio.graph_passes.integer.emit import curve_scale, emit, emit_gelu
from intaglio.graph_passes.quantize_dequantize.quantized import Quantized, Writer, quantized, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region
from intaglio.plugins.integer_math import gelu_inner_scale

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class IntegerLinear(Pass):
    """DQ(x)·DQ(W) [+ bias] → Q, and → Q → DQ → Gelu → Q, become one IntLinear each.

    1. W is a constant int8 [inputs, outputs] with a scale per column or one for all; x has one scale.
    2. The bias is rounded to int32 at the accumulator's scale, far below one step of x·W. What a zero point of x adds
       to the sums, the same for every row, is taken from it.
    3. Left, with the reason: x or outputs that are not in Q/DQ form.
    """

    name: ClassVar[str] = "integer_linear"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in model_region(model):
            if node.op_type != "MatMul" or node.graph is None:
                continue
            x, weight = quantized(node.inputs[0], zero_points=True), quantized(node.inputs[1])
            if weight is None or constant(weight.integers) is None:
                continue
            if x is None or x.bits != 8 or x.per_tensor is None:
                counts.leave(f"{node.outputs[0].name}: its input is not in 8 bits with one scale")
                continue
            if kind := _replace(writer, node, x, weight, counts):
                counts.add(kind)


def _replace(writer: Writer, node: ir.Node, x: Quantized, weight: Quantized, counts: Counts) -> str | None:
    """Insert the IntLinear; return its kind, or None if the node was left."""
    assert x.per_tensor is not None
    result, bias = with_bias(node)
    columns = weight.integers.shape
    assert columns is not None and isinstance(columns[1], int)
    accumulator = x.per_tensor * np.broadcast_to(weight.scale, columns[1])
    rounded = np.rint(np.broadcast_to(bias, columns[1]) / accumulator)
    if x.zero_point:
        numbers = constant(weight.integers)
        assert numbers is not None
        rounded -= x.zero_point * numbers.numpy().sum(axis=0, dtype=np.int64)
    integers = np.clip(rounded, -(2**30), 2**30).astype(np.int32)
    before = _last(node, result)
    inputs = [x.integers, weight.integers, writer.constant(integers, f"{result.name}.bias_int32")]
    consumers = quantizers(result)
    seen = statistics_of(result)
    means = None if seen is None else seen.channel_mean
    if isinstance(consumers, str):
        counts.leave(consumers)
        return None
    gelu = _gelu(result)
    outer = quantizers(gelu.outputs[0], zero_points=True) if gelu is not None else []
    if gelu is not None and not isinstance(outer, str) and [consumer.bits for consumer in outer] == [8]:
        inner_scale = gelu_inner_scale(curve_scale(outer[0]))
        factors = writer.dyadics(accumulator / inner_scale, f"{result.name}.requantize")
        made = emit_gelu(writer, gelu, "IntLinear", [*inputs, *factors], outer[0], activation="gelu", bits=8)
        _remember(made, means, accumulator)
        return "linear with gelu"
    _remember(emit(writer, before, "IntLinear", inputs, result, accumulator, consumers), means, accumulator)
    return "linear"


def _remember(node: ir.Node, means: Floats | None, accumulator: Floats) -> None:
    """Record on the node the mean that it must match, for correct_biases."""
    if means is not None:
        node.meta[KEY] = FloatMeans(means, accumulator)


def with_bias(node: ir.Node) -> tuple[ir.Value, Floats]:
    """Return the product with its bias, and the bias; zeros if there is none."""
    product = node.outputs[0]
    users = [user for user, _ in product.uses()]
    if len(users) == 1 and users[0].op_type == "Add" and not product.is_graph_output():
        add = users[0]
        bias = constant(add.inputs[1] if add.inputs[0] is product else add.inputs[0])
        if bias is not None and len(bias.shape) <= 1:
            return add.outputs[0], bias.numpy().astype(np.float64)
    return product, np.zeros(1)


def _last(node: ir.Node, result: ir.Value) -> ir.Node:
    producer = result.producer()
    return node if producer is None else producer


def _gelu(value: ir.Value) -> ir.Node | None:
    """Return the Gelu that is the only user of the value, through one Q/DQ pair."""
    users = [user for user, _ in value.uses()]
    for op_type in ("QuantizeLinear", "DequantizeLinear", "Gelu"):
        if len(users) != 1 or users[0].op_type != op_type:
            return None
        last = users[0]
        users = [user for user, _ in last.outputs[0].uses()]
    return last
