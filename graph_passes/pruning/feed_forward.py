"""Find the hidden channels of feed-forward networks: their producers, elementwise operators, and consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.graph_passes.graphs import constant
from intaglio.graph_passes.weights.group_layers import set_weight
from intaglio.graph_passes.weights.linear_layers import LinearLayer

Places = npt.NDArray[np.int64]

ELEMENTWISE = {
    "Abs", "Add", "Cast", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "Pow", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt",
    "Sub", "Swish", "Tanh", "ThresholdedRelu",
}  # fmt: skip


@dataclass
class FeedForward:
    """A layer whose inputs are hidden channels, and the layers that compute them: one, or gate and up of SwiGLU."""

    down: LinearLayer
    ups: list[LinearLayer] = field(default_factory=list)
    vectors: list[ir.Value] = field(default_factory=list)  # initializers whose last axis is the channels: biases
    between: list[ir.Value] = field(default_factory=list)  # activations whose last axis is the channels

    @property
    def channels(self) -> int:
        """The number of hidden channels."""
        return self.down.shape[1]

    @property
    def name(self) -> str:
        """The names of the layers."""
        return " and ".join(layer.name for layer in self.ups)

    def keep(self, places: Places) -> None:
        """Keep only the hidden channels at `places`, ascending: the shapes of weights and values shrink."""
        for layer in self.ups:
            set_weight(layer, layer.matrix()[places])
        set_weight(self.down, self.down.matrix()[:, places])
        for value in self.vectors:
            tensor = value.const_value
            assert tensor is not None
            kept = np.ascontiguousarray(tensor.numpy()[..., places])
            value.const_value, value.shape = ir.tensor(kept, name=value.name), ir.Shape(kept.shape)
        for value in self.between:
            if value.shape is not None:
                value.shape = ir.Shape([*value.shape[:-1], len(places)])


def find_feed_forward(down: LinearLayer, layers: Mapping[ir.Node, LinearLayer]) -> FeedForward | str:
    """Return the feed-forward network that ends in `down`, or the reason why its channels cannot be removed.

    1. Its input is computed from `layers` by elementwise operators only, with constants that are scalar or per channel.
    2. Intermediate values have no other uses, and no weight is shared.
    """
    found = FeedForward(down)
    reason = _own(down) or _walk(down.x, found, layers) or _used_outside(found)
    if reason is None and any(layer.shape[0] != found.channels for layer in found.ups):
        reason = "the layers before it have another number of channels"
    if reason is None and not found.ups:
        reason = "its input is not computed by a linear layer"
    return reason or found


def _walk(value: ir.Value, found: FeedForward, layers: Mapping[ir.Node, LinearLayer]) -> str | None:
    """Add the producers of `value` to the network; return the reason if that is impossible."""
    if value in found.between:
        return None
    if constant(value) is not None:
        return _take_constant(value, found)
    node = value.producer()
    if node is None:
        return "its input depends on an input of the graph"
    if value.is_graph_output():
        return f"{value.name} is an output of the graph"
    if node in layers:
        found.ups.append(layers[node])
        found.between.append(value)
        reason = _own(layers[node])
        bias = layers[node].bias
        return reason or (None if bias is None else _take_constant(bias, found))
    if node.domain != "" or node.op_type not in ELEMENTWISE or len(node.outputs) != 1:
        return f"its input is computed by {node.op_type}"
    found.between.append(value)
    for each in node.inputs:
        if each is not None and (reason := _walk(each, found, layers)):
            return reason
    return None


def _take_constant(value: ir.Value, found: FeedForward) -> str | None:
    tensor = constant(value)
    if tensor is None:
        return f"{value.name} is not a constant"
    if tensor.size == 1:
        return None
    shape = tensor.shape.numpy()
    if not value.is_initializer() or len(value.uses()) != 1 or shape[-1] != found.channels:
        return f"the constant {value.name} {list(shape)} is shared, or not one number per channel"
    found.vectors.append(value)
    return None


def _own(layer: LinearLayer) -> str | None:
    """Return the reason if another node uses the layer's weight too, as stored or transposed."""
    factor = layer.node.inputs[1]
    while factor is not None and len(factor.uses()) == 1 and factor is not layer.weight:
        producer = factor.producer()
        factor = None if producer is None else producer.inputs[0]
    shared = layer.tied or factor is not layer.weight or len(layer.weight.uses()) != 1
    return f"the weight of {layer.name} is shared" if shared else None


def _used_outside(found: FeedForward) -> str | None:
    """Return the reason if a value inside the network is used outside of it."""
    for value in found.between:
        for node, _ in value.uses():
            if node is not found.down.node and not any(output in found.between for output in node.outputs):
                return f"{value.name} is used by {node.op_type} too"
    return None
