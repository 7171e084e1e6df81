"""What of an integer-only graph is trained: weights and biases of its linear layers and normalisations, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx_ir as ir
import torch

from intaglio.plugins import DOMAIN

WEIGHT_LIMIT = 127.0  # int8 weights are symmetric
WIDE_LIMIT = 2.0**30  # of int32 biases: leaves room for the sum of 65536 products of int8


@dataclass(frozen=True)
class Trainable:
    """An initializer whose integers are trained, between `low` and `high`.

    `unit`: the change that is to the model about what one unit of an int8 weight is; learning rates count in it.
    """

    value: ir.Value
    low: float
    high: float
    unit: float
    kind: str  # "weight", "bias", "layer_norm" or "embedding"

    @property
    def tensor(self) -> ir.TensorProtocol:
        """The integers that the graph has."""
        assert self.value.const_value is not None
        return self.value.const_value

    def shadow(self) -> torch.nn.Parameter:
        """The integers as real numbers: int8 in float32; int32 in float64, which holds it exactly."""
        integers = np.array(self.tensor.numpy())
        dtype = torch.float32 if integers.dtype == np.int8 else torch.float64
        return torch.nn.Parameter(torch.from_numpy(integers).to(dtype))


def trainable(nodes: Sequence[ir.Node], embeddings: bool) -> Iterator[Trainable]:
    """Each initializer that is trained, once, in the order of the graph; tables only with `embeddings`."""
    seen: set[ir.Value] = set()
    for node in nodes:
        if node.domain == DOMAIN and node.op_type == "IntLinear":
            found = _linear(node)
        elif node.domain == DOMAIN and node.op_type == "IntLayerNorm":
            found = _layer_norm(node)
        elif embeddings and node.domain == "" and node.op_type == "Gather":
            found = _table(node)
        else:
            continue
        for each in found:
            if each.value not in seen:
                seen.add(each.value)
                yield each


def _linear(node: ir.Node) -> Iterator[Trainable]:
    weight, bias = node.inputs[1:3]
    if _is_constant(weight):
        yield Trainable(weight, -WEIGHT_LIMIT, WEIGHT_LIMIT, 1.0, "weight")
    if _is_constant(bias):  # 127 of it are what one unit of weight makes of the largest activation
        yield Trainable(bias, -WIDE_LIMIT, WIDE_LIMIT, 127.0, "bias")


def _layer_norm(node: ir.Node) -> Iterator[Trainable]:
    """Both in units of 1/127 of the largest weight: normalised activations are about 1."""
    weight, bias = node.inputs[1:3]
    if not _is_constant(weight) or not _is_constant(bias):
        return
    assert weight.const_value is not None
    largest = int(np.abs(weight.const_value.numpy().astype(np.int64)).max(initial=1))
    limit = 2.0 ** largest.bit_length() - 1  # no more bits than before: kernels may be faster with few
    unit = largest / 127
    ratio = node.attributes["weight_scale"].as_float() / node.attributes["bias_scale"].as_float()
    yield Trainable(weight, -limit, limit, unit, "layer_norm")
    yield Trainable(bias, -WIDE_LIMIT, WIDE_LIMIT, unit * ratio, "layer_norm")


def _table(node: ir.Node) -> Iterator[Trainable]:
    table = node.inputs[0]
    if _is_constant(table) and table.dtype == ir.DataType.INT8:
        yield Trainable(table, -WEIGHT_LIMIT, WEIGHT_LIMIT, 1.0, "embedding")


def _is_constant(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Whether the value is an initializer that only the graph itself uses."""
    if value is None or value.const_value is None:
        return False
    return value.is_initializer() and not value.is_graph_output()
