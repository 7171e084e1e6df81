"""The trainable constants of an integer-only graph: weights and biases of linear layers and normalisations, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx_ir as ir
import torch

from intaglio.plugins import DOMAIN
from intaglio.plugins.nodes import attributes, operator_of
from intaglio.plugins.training_arithmetic import WEIGHT_LIMIT
from intaglio.training.integer.operators import PARAMETERS


@dataclass(frozen=True)
class Trainable:
    """An initializer with trainable integers between `low` and `high`.

    `unit`: the change with about the effect on the model of one unit of an int8 weight; learning rates count in it.
    """

    value: ir.Value
    low: float
    high: float
    unit: float
    kind: str  # "weight", "bias", "layer_norm" or "embedding"

    @property
    def tensor(self) -> ir.TensorProtocol:
        """The graph's integers."""
        assert self.value.const_value is not None
        return self.value.const_value

    def shadow(self) -> torch.nn.Parameter:
        """The integers as real numbers: int8 in float32; int32 in float64, which holds it exactly."""
        integers = np.array(self.tensor.numpy())
        dtype = torch.float32 if integers.dtype == np.int8 else torch.float64
        return torch.nn.Parameter(torch.from_numpy(integers).to(dtype))


def trainable(nodes: Sequence[ir.Node], embeddings: bool) -> Iterator[Trainable]:
    """Each trainable initializer once, in the order of the graph; tables only with `embeddings`."""
    seen: set[ir.Value] = set()
    for node in nodes:
        for each in _of_node(node, embeddings):
            if each.value not in seen:
                seen.add(each.value)
                yield each


def _of_node(node: ir.Node, embeddings: bool) -> Iterator[Trainable]:
    if node.domain == DOMAIN and node.op_type in PARAMETERS:
        yield from _parameters(node)
    elif embeddings and node.domain == "" and node.op_type == "Gather":
        yield from _table(node)


def _parameters(node: ir.Node) -> Iterator[Trainable]:
    """The trainable constants of a node, from the operator's `training.py`."""
    operator = operator_of(node)
    named = zip(operator.inputs, node.inputs, strict=False)
    values = {spec.name: value for spec, value in named if _is_constant(value)}
    constants = {name: value.const_value.numpy() for name, value in values.items() if value.const_value is not None}
    for found in PARAMETERS[operator.name](constants, operator.complete(attributes(node))):
        yield Trainable(values[found.input], -found.limit, found.limit, found.unit, found.kind)


def _table(node: ir.Node) -> Iterator[Trainable]:
    table = node.inputs[0]
    if _is_constant(table) and table.dtype == ir.DataType.INT8:
        yield Trainable(table, -WEIGHT_LIMIT, WEIGHT_LIMIT, 1.0, "embedding")


def _is_constant(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Whether the value is an initializer that only the graph itself uses."""
    if value is None or value.const_value is None:
        return False
    return value.is_initializer() and not value.is_graph_output()
