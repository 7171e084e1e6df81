"""SplitProjections: one matrix product whose result is cut into parts becomes a product for each part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant, infer_shapes, integers, remove_if_dead
from intaglio.graph_passes.integer.integer_linear import with_bias
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.graph_passes.quantize_dequantize.region import model_region
from intaglio.graph_passes.sections import section

Columns = npt.NDArray[np.int64]  # which columns of the weight a value has, in the shape of its last axes


@dataclass(frozen=True)
class SplitProjections(Pass):
    """x·[A B C] (+ bias), cut into parts, becomes x·A, x·B and x·C, which compute the same numbers.

    So queries, keys and values, or the two factors of a gated feed-forward layer, have scales of their own.

    1. Every MatMul of the encoder with a constant weight whose result, after its bias and a Reshape of the channels, is
       used by Slice, Split and Gather of channels alone.
    2. Left: all other products.
    """

    name: ClassVar[str] = "split_projections"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        infer_shapes(model)
        writer = Writer(model)
        for node in model_region(model):
            weight = constant(node.inputs[1]) if node.op_type == "MatMul" and node.domain == "" else None
            if weight is None or len(weight.shape) != 2:
                continue
            result, bias = with_bias(node)
            width = weight.numpy().shape[1]
            for value, columns in _parts(result, np.arange(width)) or []:
                _replace(writer, node, value, columns, np.broadcast_to(bias, width))
                counts.add("parts")


def _parts(value: ir.Value, columns: Columns) -> list[tuple[ir.Value, Columns]] | None:
    """Return the values that the columns are cut into; None if anything else uses `value`."""
    if value.is_graph_output() or value.shape is None:
        return None
    leading = len(value.shape) - columns.ndim
    found: list[tuple[ir.Value, Columns]] = []
    for user, _ in value.uses():
        output = user.outputs[0]
        if user.op_type == "Reshape" and output.shape is not None:
            axes = [length for length in output.shape[leading:] if isinstance(length, int)]
            whole = leading + len(axes) == len(output.shape) and math.prod(axes) == columns.size
            if not whole or output.shape[:leading] != value.shape[:leading]:
                return None
            inner = _parts(output, columns.reshape(axes))
            if inner is None:
                return None
            found += inner
            continue
        for each in user.outputs:
            cut = section(each)
            if cut is None or cut.source is not value or cut.axis < leading:
                return None
            part = columns.take(range(cut.start, cut.stop), cut.axis - leading)
            found.append(_squeezed(each, part.squeeze(cut.axis - leading) if cut.dropped else part))
    return found or None


def _squeezed(value: ir.Value, columns: Columns) -> tuple[ir.Value, Columns]:
    """Return a part after the Squeeze that alone uses it, if there is one."""
    users = [user for user, _ in value.uses()]
    if len(users) != 1 or users[0].op_type != "Squeeze" or value.is_graph_output() or value.shape is None:
        return value, columns
    axes, leading = integers(users[0], "axes", 1), len(value.shape) - columns.ndim
    places = [axis % len(value.shape) - leading for axis in axes or [0]]
    return (value, columns) if min(places) < 0 else (users[0].outputs[0], columns.squeeze(tuple(places)))


def _replace(writer: Writer, node: ir.Node, value: ir.Value, columns: Columns, bias: npt.NDArray[np.float64]) -> None:
    """Compute `value` by a product of its own."""
    producer, (x, weight), order = value.producer(), node.inputs, columns.reshape(-1)
    tensor = constant(weight)
    assert producer is not None and tensor is not None and x is not None and x.shape is not None
    name = f"{value.name}_projection"
    part = writer.constant(tensor.numpy()[:, order], f"{name}.weight")
    made = writer.node(producer, "MatMul", [x, part], name).outputs[0]
    leading = x.shape[:-1]
    made.type, made.shape = value.type, ir.Shape([*leading, len(order)])
    if bias.any():
        added = writer.constant(bias[order].astype(tensor.numpy().dtype), f"{name}.bias")
        product, made = made, writer.node(producer, "Add", [made, added], f"{name}_bias").outputs[0]
        made.type, made.shape = value.type, product.shape
    if columns.ndim > 1:
        target = writer.constant(np.array([*[0] * len(leading), *columns.shape], np.int64), f"{name}.shape")
        made = writer.node(producer, "Reshape", [made, target], f"{name}_heads").outputs[0]
        made.type, made.shape = value.type, value.shape
    value.replace_all_uses_with(made)
    remove_if_dead(producer)
