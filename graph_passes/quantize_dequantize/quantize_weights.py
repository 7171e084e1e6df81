"""QuantizeWeights: quantise constant weights of MatMuls to 8 bits, with one scale per output channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.front_end import front_end
from intaglio.graph_passes.graphs import all_nodes, constant, remove_initializer_if_dead
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.graph_passes.quantize_dequantize.region import model_region
from intaglio.plugins.group_matmul.minimums import completes_groups

Array = npt.NDArray[np.float32 | np.float16]

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
LIMIT = 127  # symmetric: -128 is not used


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    """MatMul(x, W) becomes MatMul(x, DequantizeLinear(integers, scales)), W of shape [inputs, outputs].

    1. `where="encoder"`: the weights from the embedding tables to the last normalisation; "everywhere": all.
    2. `smallest` is the minimum number of elements of a weight to quantise.
    3. The scales have the weight's dtype.
    4. Left: weights that are not constants, not 2-D, or neither float32 nor float16; the filters of a recogniser's
       front end, whose rounding a logarithm would amplify.
    """

    name: ClassVar[str] = "quantize_weights"
    effect: ClassVar[Effect] = Effect.WEIGHTS_8
    where: Literal["encoder", "everywhere"] = "encoder"
    smallest: int = 0

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        shared: dict[ir.Value, ir.Value] = {}
        computing_features = front_end(model)
        for node in model_region(model) if self.where == "encoder" else all_nodes(model):
            if node.op_type != "MatMul" or node.domain != "" or node.graph is not model.graph:
                continue
            if node in computing_features:
                counts.leave(f"{node.name}: computes the features of a waveform")
                continue
            weight = node.inputs[1]
            tensor = constant(weight)
            if weight is None or tensor is None or completes_groups(weight.name):
                continue
            if len(tensor.shape) != 2 or tensor.dtype not in FLOATS:
                counts.leave(
                    f"{weight.name} {list(tensor.shape)} {tensor.dtype}: expected float32 or float16 with two axes"
                )
            elif tensor.size >= self.smallest:
                if weight not in shared:
                    shared[weight] = _dequantized(writer, node, weight, tensor.numpy())
                    counts.add("weights")
                node.replace_input_with(1, shared[weight])
                remove_initializer_if_dead(weight)


def quantize_columns(name: str, weight: Array) -> tuple[npt.NDArray[np.int8], Array]:
    """Quantise the constant `name` [rows, columns] to int8, with one scale per column, its absolute maximum / 127.

    The scales have the dtype of `weight`. Raises `GraphError` for NaN and infinities.
    """
    if not np.isfinite(weight).all():
        raise GraphError(f"{name}: contains NaN or infinity, expected finite weights. Fix the checkpoint.")
    largest = np.abs(weight).max(axis=0, initial=0).astype(np.float32)
    least = np.finfo(weight.dtype).smallest_subnormal  # float16 would round a smaller one to 0
    scales = np.maximum(np.where(largest > 0, largest, 1) / LIMIT, least).astype(weight.dtype)
    exact = weight.astype(np.float32) / scales.astype(np.float32)
    return np.clip(np.rint(exact), -LIMIT, LIMIT).astype(np.int8), scales


def _dequantized(writer: Writer, node: ir.Node, weight: ir.Value, array: Array) -> ir.Value:
    integers, scales = quantize_columns(str(weight.name), array)
    inputs = [
        writer.constant(integers, f"{weight.name}_int8"),
        writer.constant(scales, f"{weight.name}_int8.scale"),
    ]
    made = writer.node(node, "DequantizeLinear", inputs, f"{weight.name}_back", axis=1).outputs[0]
    made.dtype, made.shape = ir.DataType.from_numpy(scales.dtype), ir.Shape(array.shape)
    return made
