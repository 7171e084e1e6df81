"""The compressed fraction of a model's weights, computed from its graph."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import msgspec
import onnx_ir as ir

from intaglio.graph_passes.graphs import all_nodes, constant
from intaglio.graph_passes.weights.linear_layers import all_layers, layer_name, stored
from intaglio.plugins import DOMAIN, OPS
from intaglio.plugins.group_matmul.look_up import codes_looked_up
from intaglio.plugins.group_matmul.minimums import completes_groups

INTEGERS = {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4}
# Standard operator -> index of the input that is a linear layer's weight
FACTORS = {"MatMul": 1, "Gemm": 1, "MatMulInteger": 1, "QLinearMatMul": 3}


class LeftWeight(msgspec.Struct, frozen=True):
    """A weight stored in floating point: of a linear layer, possibly tied to a table, or an embedding table.

    `asked`: it was left because of the recipe's options.
    """

    name: str
    elements: int
    kind: Literal["layer", "tied", "table"]
    asked: bool


@dataclass(frozen=True)
class WeightShare:
    """Numbers of elements of compressed linear layers and tables, and the uncompressed weights, largest first.

    A weight shared by several layers, or by a layer and a table, counts once.
    """

    layers: int
    tables: int
    left: list[LeftWeight]

    @property
    def compressed(self) -> float:
        """The compressed fraction of all weights; 0 without weights."""
        done = self.layers + self.tables
        return done / max(done + sum(weight.elements for weight in self.left), 1)

    @property
    def left_unasked(self) -> float:
        """The fraction of the linear layers' weights that is left although no option asked for it."""
        left = [weight for weight in self.left if weight.kind != "table"]
        unasked = sum(weight.elements for weight in left if not weight.asked)
        return unasked / max(self.layers + sum(weight.elements for weight in left), 1)


def weight_share(model: ir.Model, asked: Collection[str] = ()) -> WeightShare:
    """Count the compressed linear layers and embedding tables of `model`; `asked`: layers left because of options.

    1. Linear layers: those of `linear_layers`, and their replacements: LutMatMul, GroupMatMul, IntLinear, and products
       with integers of at most 8 bits, directly or behind a DequantizeLinear.
    2. Tables: 2-D tensors whose rows a Gather reads.
    """
    left: dict[ir.Value, LeftWeight] = {}
    done: dict[ir.Value, int] = {}
    tables: dict[ir.Value, int] = {}
    for layer in all_layers(model):
        rows, columns = layer.shape
        kind: Literal["layer", "tied"] = "tied" if layer.tied else "layer"
        left[layer.weight] = LeftWeight(layer.name, rows * columns, kind, layer.name in asked)
    for node in all_nodes(model):
        if node.domain == DOMAIN:
            done.update(_own(node))
        elif node.domain == "" and node.op_type in FACTORS:
            done.update(_integers(node.inputs[FACTORS[node.op_type]]))
        elif node.domain == "" and node.op_type == "Gather":
            rows_of = node.inputs[0]
            if rows_of is None or completes_groups(rows_of.name):
                continue
            tables.update(_looked_up(node) or _integers(rows_of))
            table, _ = stored(rows_of)
            tensor = constant(table)
            if table is not None and tensor is not None and table not in left:
                left[table] = LeftWeight(layer_name(table), tensor.size, "table", False)
    largest_first = sorted(left.values(), key=lambda weight: -weight.elements)
    looked_up = sum(count for table, count in tables.items() if table not in done)
    return WeightShare(sum(done.values()), looked_up, largest_first)


def _own(node: ir.Node) -> dict[ir.Value, int]:
    """Return the weight of one of our operators and its number of elements; empty without a weight."""
    inputs = OPS[node.op_type].inputs if node.op_type in OPS else ()
    weight = next((value for spec, value in zip(inputs, node.inputs, strict=False) if spec.weight), None)
    if "K" not in node.attributes:
        return _integers(weight)
    if weight is None or weight.shape is None:
        return {}
    return {weight: weight.shape.numpy()[0] * node.attributes["K"].as_int()}


def _looked_up(node: ir.Node) -> dict[ir.Value, int]:
    """Return the packed codes that a Gather looks up and their number; empty without."""
    codes, table = codes_looked_up(node), node.inputs[0]
    if codes is None or table is None or table.shape is None:
        return {}
    return {table: table.shape.numpy()[0] * codes.width}


def _integers(value: ir.Value | None) -> dict[ir.Value, int]:
    """Return the integer initializer that `value` is computed from and its elements; empty if there is none."""
    while value is not None and (producer := value.producer()) is not None:
        if producer.domain != "" or producer.op_type not in ("DequantizeLinear", "Transpose", "Cast", "Identity"):
            return {}
        value = producer.inputs[0]
    tensor = constant(value)
    if value is None or tensor is None or tensor.dtype not in INTEGERS or len(tensor.shape) != 2:
        return {}
    return {value: tensor.size}
