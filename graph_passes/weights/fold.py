"""Divide an activation's channels by constants at no cost, by folding them into the producer of the activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intaglio.graph_passes.graphs import constant
from intaglio.graph_passes.weights.linear_layers import LinearLayer
from intaglio.graph_passes.weights.uniform import Floats
from intaglio.plugins.nodes import lengths

NORMALIZATIONS = {"LayerNormalization", "RMSNormalization"}  # their last factors are constants per channel
PASSED_THROUGH = {"Identity", "Cast", "Relu"}  # f(x / s) = f(x) / s for s > 0


@dataclass
class Fold:
    """The tensors to divide by s [channels] so that an activation is divided by it."""

    vectors: list[ir.Value] = field(default_factory=list)  # initializers whose last axis is the channels
    layers: list[LinearLayer] = field(default_factory=list)  # whose outputs are the channels

    def apply(self, factors: Floats, row_factors: dict[ir.Node, Floats]) -> None:
        """Divide the vectors by `factors`, and record the factors of the layers' rows in `row_factors`."""
        for value in self.vectors:
            tensor = value.const_value
            assert tensor is not None
            scaled = (tensor.numpy().astype(np.float32) / factors).astype(tensor.dtype.numpy())
            value.const_value = ir.tensor(scaled, name=value.name)
        for layer in self.layers:
            row_factors[layer.node] = np.float32(1) / factors


def find_fold(x: ir.Value, layers: Mapping[ir.Node, LinearLayer]) -> Fold | str:
    """Find how to divide `x` by positive factors, one per channel; or return the reason why that is impossible.

    1. All users of x are among `layers`, whose weights can be multiplied by the factors.
    2. x is the output of a normalisation or a product with constants per channel, which absorb the factors; of one of
       `layers`, optionally with a constant added; or of an elementwise product with one of these, as in SwiGLU.
    3. Relu, Cast, Identity and a GatherND of whole tokens may be in between; a GELU may not.
    """
    if x.is_graph_output() or any(node not in layers for node, _ in x.uses()):
        return "it is not only used by group-quantised linear layers"
    width = next(iter(layers[node].shape[1] for node, _ in x.uses()))
    return _fold(x, width, layers)


def _fold(value: ir.Value, width: int, layers: Mapping[ir.Node, LinearLayer]) -> Fold | str:
    node = value.producer()
    if node is None:
        return "it is an input of the graph"
    if node in layers:
        layer = layers[node]
        if layer.bias is not None and not _is_own_vector(layer.bias, width):
            return f"the bias of {layer.name} is shared"
        return Fold([layer.bias] if layer.bias is not None else [], [layer])
    inputs = [each for each in node.inputs if each is not None]
    if node.domain == "" and node.op_type in NORMALIZATIONS and value is node.outputs[0]:
        if all(_is_own_vector(each, width) for each in inputs[1:]):
            return Fold(inputs[1:])
    elif node.domain == "" and (node.op_type in PASSED_THROUGH or _picks_tokens(node)):
        return _inner(inputs[0], width, layers)
    elif node.domain == "" and node.op_type in ("Add", "Mul"):
        return _fold_pair(node.op_type, inputs, width, layers)
    return f"factors do not commute with {node.op_type}"


def _fold_pair(op_type: str, inputs: list[ir.Value], width: int, layers: Mapping[ir.Node, LinearLayer]) -> Fold | str:
    """Handle a product, one factor of which can absorb the factors, or a sum with a constant."""
    vectors = [each for each in inputs if _is_own_vector(each, width)]
    others = [each for each in inputs if constant(each) is None]
    if op_type == "Mul" and vectors:
        return Fold(vectors[:1])
    if op_type == "Add" and len(vectors) == 1 and len(others) == 1:
        inner = _inner(others[0], width, layers)
        return inner if isinstance(inner, str) else Fold([*inner.vectors, vectors[0]], inner.layers)
    if op_type == "Mul" and len(others) == 2:
        found = [_inner(each, width, layers) for each in others]
        return next((each for each in found if isinstance(each, Fold)), found[0])
    return f"factors do not commute with {op_type}"


def _inner(value: ir.Value, width: int, layers: Mapping[ir.Node, LinearLayer]) -> Fold | str:
    """Handle an intermediate value, which must have no other uses."""
    if value.is_graph_output() or len(value.uses()) != 1:
        return f"{value.name} is used elsewhere too"
    return _fold(value, width, layers)


def _picks_tokens(node: ir.Node) -> bool:
    """Whether a GatherND keeps the last axis, the channels, unchanged."""
    if node.op_type != "GatherND" or node.inputs[0] is None or node.inputs[1] is None:
        return False
    data, indices = lengths(node.inputs[0]), lengths(node.inputs[1])
    batch = node.attributes["batch_dims"].as_int() if "batch_dims" in node.attributes else 0
    return bool(data and indices and isinstance(indices[-1], int) and batch + indices[-1] < len(data))


def _is_own_vector(value: ir.Value, width: int) -> bool:
    """Whether this is an initializer of `width` numbers along its last axis, used once."""
    tensor = constant(value)
    if tensor is None or not value.is_initializer() or value.is_graph_output() or len(value.uses()) != 1:
        return False
    return tensor.size == width and tensor.shape.numpy()[-1] == width
