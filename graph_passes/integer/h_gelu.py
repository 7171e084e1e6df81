"""HGelu: GELU by a hard sigmoid, for comparison with i-GELU (I-BERT, equation 2.6 and table 2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import all_nodes
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.plugins.nodes import take_over

SLOPE = 1.702  # slope of the sigmoid that approximates the error function, I-BERT equation 2.5


@dataclass(frozen=True)
class HGelu(Pass):
    """Replace Gelu(x) by x·min(max(1.702·x + 3, 0), 6) / 6, in floating point.

    1. Every float32 Gelu of the graph, exact or tanh.
    2. Left: Gelus of another dtype, and those inside the bodies of If, Loop and Scan.
    """

    name: ClassVar[str] = "h_gelu"
    effect: ClassVar[Effect] = Effect.REPLACED

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in all_nodes(model):
            if node.op_type != "Gelu" or node.domain != "":
                continue
            if node.graph is not model.graph or node.outputs[0].dtype != ir.DataType.FLOAT:
                counts.leave(f"{node.outputs[0].name}: {node.outputs[0].dtype} in {getattr(node.graph, 'name', '')}")
                continue
            _replace(writer, node)
            counts.add("gelu")


def _replace(writer: Writer, node: ir.Node) -> None:
    x, old = node.inputs[0], node.outputs[0]
    assert x is not None and node.graph is not None
    slope, three, zero, six, sixth = (
        writer.constant(np.asarray(number, np.float32), f"{old.name}.h_gelu")
        for number in (SLOPE, 3.0, 0.0, 6.0, 1.0 / 6.0)
    )
    line = writer.node(node, "Mul", [x, slope], f"{old.name}_line").outputs[0]
    shifted = writer.node(node, "Add", [line, three], f"{old.name}_shifted").outputs[0]
    hard = writer.node(node, "Clip", [shifted, zero, six], f"{old.name}_hard").outputs[0]
    gate = writer.node(node, "Mul", [hard, sixth], f"{old.name}_gate").outputs[0]
    product = writer.node(node, "Mul", [x, gate], f"{old.name}_h_gelu").outputs[0]
    for value in (line, shifted, hard, gate, product):
        value.type, value.shape = old.type, old.shape
    take_over(old, product)
    node.graph.remove(node, safe=True)
