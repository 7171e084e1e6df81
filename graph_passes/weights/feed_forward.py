"""The hidden channels of feed-forward networks: where they are made, what happens to each alone, where they end."""

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
    """A layer that takes hidden channels in, and the layers that make them: one, or the gate and the up of SwiGLU."""

    down: LinearLayer
    ups: list[LinearLayer] = field(default_factory=list)
    vectors: list[ir.Value] = field(default_factory=list)  # initializers whose last axis is the channels: biases
    between: list[ir.Value] = field(default_factory=list)  # activations whose last axis is the channels

    @property
    def channels(self) -> int:
        """The hidden channels."""
        return self.down.shape[1]

    @property
    def name(self) -> str:
        """The names of the layers."""
        return " and ".join(layer.name for layer in self.ups)

    def keep(self, places: Places) -> None:
        """Remove all hidden channels but those at `places`, ascending: the shapes of weights and values shrink."""
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
    """The feed-forward network that ends in `down`, or the reason why it is none whose channels can be removed.

    1. Its input comes from `layers` through elementwise operators alone, and constants that are one number or one for
       each channel.
    2. What is on the way is used for nothing else, and no weight is shared.
    """
    found = FeedForward(down)
    reason = _own(down) or _walk(down.x, found, layers) or _used_outside(found)
    if reason is None and any(layer.shape[0] != found.channels for layer in found.ups):
        reason = "the layers before it give another number of channels"
    if reason is None and not found.ups:
        reason = "no linear layer gives its input"
    return reason or found


def _walk(value: ir.Value, found: FeedForward, layers: Mapping[ir.Node, LinearLayer]) -> str | None:
    """Take in what `value` is made of; the reason where it cannot be."""
    if value in found.between:
        return None
    if constant(value) is not None:
        return _take_constant(value, found)
    node = value.producer()
    if node is None:
        return "an input of the graph leads to its input"
    if value.is_graph_output():
        return f"{value.name} is an output of the graph"
    if node in layers:
        found.ups.append(layers[node])
        found.between.append(value)
        reason = _own(layers[node])
        bias = layers[node].bias
        return reason or (None if bias is None else _take_constant(bias, found))
    if node.domain != "" or node.op_type not in ELEMENTWISE or len(node.outputs) != 1:
        return f"{node.op_type} leads to its input"
    found.between.append(value)
    for each in node.inputs:
        if each is not None and (reason := _walk(each, found, layers)):
            return reason
    return None


def _take_constant(value: ir.Value, found: FeedForward) -> str | None:
    tensor = constant(value)
    if tensor is None:
        return f"{value.name} is no constant"
    if tensor.size == 1:
        return None
    shape = tensor.shape.numpy()
    if not value.is_initializer() or len(value.uses()) != 1 or shape[-1] != found.channels:
        return f"the constant {value.name} {list(shape)} is shared, or not one number for each channel"
    found.vectors.append(value)
    return None


def _own(layer: LinearLayer) -> str | None:
    """The reason where another node uses the layer's weight too, as it is stored or transposed."""
    factor = layer.node.inputs[1]
    while factor is not None and len(factor.uses()) == 1 and factor is not layer.weight:
        producer = factor.producer()
        factor = None if producer is None else producer.inputs[0]
    shared = layer.tied or factor is not layer.weight or len(layer.weight.uses()) != 1
    return f"the weight of {layer.name} is shared" if shared else None


def _used_outside(found: FeedForward) -> str | None:
    """The reason where something outside of the network uses a value inside."""
    for value in found.between:
        for node, _ in value.uses():
            if node is not found.down.node and not any(output in found.between for output in node.outputs):
                return f"{value.name} is used by {node.op_type} too"
    return None
