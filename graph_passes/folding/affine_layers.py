"""Layers with constant weights whose inputs and outputs can be scaled and shifted at no cost, by changing the weights.

For y = x·W + b, W [K, N] and b [N] (of a convolution, the channels are K and N):

    inputs  x → γ·x       W' = diag(γ)·W
    inputs  x → x + β     b' = b + β·W
    outputs y → s·y       W' = W·diag(s), b' = s·b
    outputs y → y + t     b' = b + t

The factors and the bias of a layer are collected in float64; its weights are computed and rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.errors import GraphError
from intaglio.graph_passes.front_end import STRUCTURE
from intaglio.graph_passes.graphs import Array, Names, add_initializer, constant, rank
from intaglio.plugins.nodes import lengths

Vector = npt.NDArray[np.float64]  # [channels]

KINDS = ("MatMul", "Gemm", "Conv")
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def users(value: ir.Value) -> list[ir.Node]:
    """The nodes that use the numbers of `value`, not only its shape."""
    return [node for node, _ in value.uses() if node.domain != "" or node.op_type not in STRUCTURE]


def per_channel(tensor: ir.TensorProtocol | None, x: ir.Value, axis: int, channels: int) -> Vector | None:
    """The numbers of a constant that is broadcast to `x`, one for each channel along `axis`; else None.

    `axis` is -1, or counts from the first axis. None too if the constant may add an axis to `x`, or lengthen one.
    """
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    shape, axes = tensor.shape.numpy(), rank(x)
    if len(shape) > max(axes or 0, 1):
        return None
    if axis >= 0 and (axes is None or axis >= axes):
        return None
    behind = 0 if axis < 0 else (axes or 0) - 1 - axis  # axes behind the channels
    place = len(shape) - 1 - behind
    if any(length != 1 for index, length in enumerate(shape) if index != place):
        return None
    numbers = tensor.numpy().astype(np.float64).reshape(-1)
    if numbers.size == channels and (channels == 1 or _length(x, axis) == channels):
        return numbers
    return np.full(channels, numbers[0]) if numbers.size == 1 else None


def _length(x: ir.Value, axis: int) -> int | str | None:
    known = lengths(x)
    return None if not known else known[axis]


class AffineLayer:
    """A MatMul, Gemm or Conv with a constant weight, and its bias.

    The bias of a MatMul is the constant of its only user, if that is an Add. Made by `AffineLayers`.
    """

    def __init__(self, node: ir.Node, weight: ir.TensorProtocol):
        self.node = node
        self.groups = node.attributes.get_int("group", 1) if node.op_type == "Conv" else 1
        self._rows_first = node.op_type == "Conv" or bool(node.attributes.get_int("transB", 0))  # W [N, K, …]
        self._stored = weight
        shape = weight.shape.numpy()
        self.inputs, self.outputs = (shape[1] * self.groups, shape[0]) if self._rows_first else (shape[0], shape[1])
        self.adding = _bias_add(node, self.outputs) if node.op_type == "MatMul" else None
        self._input_factors: Vector | None = None
        self._output_factors: Vector | None = None
        self._bias: Vector | None = None

    @property
    def axis(self) -> int:
        """The axis of the channels, of inputs and outputs."""
        return 1 if self.node.op_type == "Conv" else -1

    @property
    def output(self) -> ir.Value:
        """The value that the layer returns, with its bias."""
        return (self.adding or self.node).outputs[0]

    def refuses_bias(self) -> str | None:
        """A description of the layer if its bias cannot change; else None."""
        stored = self._bias_value
        if stored is not None and constant(stored) is None:
            return f"a {self.node.op_type} whose bias is not a constant"
        if stored is None and self.node.op_type == "MatMul" and self.node.outputs[0].is_graph_output():
            return "a MatMul that is an output of the graph and has no bias"
        return None

    def refuses_shifted_inputs(self) -> str | None:
        """A description of the layer if a shift of its inputs cannot become part of its bias; else None."""
        attributes = self.node.attributes
        if self.node.op_type == "Conv" and (
            any(attributes["pads"].as_ints() if "pads" in attributes else ())
            or attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        ):
            return "a Conv that pads its input with zeros, which are not shifted"
        return self.refuses_bias()

    def scale_inputs(self, factors: Vector) -> None:
        """Multiply the inputs by `factors` [K]."""
        self._input_factors = factors if self._input_factors is None else self._input_factors * factors

    def shift_inputs(self, offsets: Vector) -> None:
        """Add `offsets` [K] to the inputs."""
        taps = self._weight().sum(axis=-1)  # [groups, N / groups, K / groups]
        self.shift_outputs(np.einsum("gnk,gk->gn", taps, offsets.reshape(self.groups, -1)).reshape(-1))

    def scale_outputs(self, factors: Vector) -> None:
        """Multiply the outputs by `factors` [N]."""
        if self._bias_value is not None or self._bias is not None:
            self._bias = self._current_bias() * factors
        self._output_factors = factors if self._output_factors is None else self._output_factors * factors

    def shift_outputs(self, offsets: Vector) -> None:
        """Add `offsets` [N] to the outputs."""
        self._bias = self._current_bias() + offsets

    def write(self, model: ir.Model, names: Names) -> bool:
        """Write the changed weight and bias into the graph; return whether the weight had to be copied.

        It is copied if something else uses it. Raises `GraphError` for numbers beyond the range of their dtype.
        """
        copied, product = False, self.node.outputs[0]
        if self._input_factors is not None or self._output_factors is not None:
            copied = _replace(model, names, self.node, 1, self._stored_as(self._weight()))
        if self._bias is None:
            changes_product = self.adding is not None and self._output_factors is not None
        else:
            changes_product = self.node.op_type == "MatMul"
            self._write_bias(model, names, self._bias.astype(self._stored.dtype.numpy()))
        if changes_product:  # the value in front of the bias is no longer what its name says
            product.name = names.new(f"{product.name}_product")
        return copied

    @property
    def _bias_value(self) -> ir.Value | None:
        if self.adding is not None:
            return self.adding.inputs[1 - _position(self.adding, self.node.outputs[0])]
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    def _current_bias(self) -> Vector:
        if self._bias is not None:
            return self._bias
        stored = constant(self._bias_value)
        if stored is None:
            return np.zeros(self.outputs)
        return np.broadcast_to(stored.numpy().astype(np.float64).reshape(-1), (self.outputs,))

    def _weight(self) -> npt.NDArray[np.float64]:
        """The weight with its factors, [groups, N / groups, K / groups, taps]."""
        array = self._stored.numpy().astype(np.float64)
        ordered = array if self._rows_first else array.T
        weight = ordered.reshape(self.groups, self.outputs // self.groups, self.inputs // self.groups, -1)
        if self._input_factors is not None:
            weight = weight * self._input_factors.reshape(self.groups, 1, -1, 1)
        if self._output_factors is not None:
            weight = weight * self._output_factors.reshape(self.groups, -1, 1, 1)
        return weight

    def _stored_as(self, weight: npt.NDArray[np.float64]) -> Array:
        """`weight` in the order and the dtype in which it is stored."""
        shape = self._stored.shape.numpy()
        ordered = weight.reshape(shape) if self._rows_first else weight.reshape(shape[::-1]).T
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(ordered.astype(self._stored.dtype.numpy()))

    def _write_bias(self, model: ir.Model, names: Names, bias: Array) -> None:
        value, product = self._bias_value, self.node.outputs[0]
        if value is not None:
            node = self.adding or self.node
            stored = constant(value)
            assert stored is not None
            shape = stored.shape.numpy()
            shaped = bias.reshape(shape) if math.prod(shape) == bias.size else bias
            _replace(model, names, node, list(node.inputs).index(value), shaped)
            return
        name = self.node.name or product.name
        made = add_initializer(model, names.new(f"{name}.bias"), bias)
        if self.node.op_type != "MatMul":
            self.node.resize_inputs(3)
            self.node.replace_input_with(2, made)
            return
        added = ir.Node("", "Add", [product, made], num_outputs=1, name=names.new(f"{name}_bias"))
        assert self.node.graph is not None
        self.node.graph.insert_after(self.node, added)
        output = added.outputs[0]
        output.type, output.shape = product.type, product.shape
        product.replace_all_uses_with(output)
        added.replace_input_with(0, product)
        output.name, product.name = product.name, names.new(f"{product.name}_unbiased")
        self.adding = added


class AffineLayers:
    """The layers of a model, by node; their weights change when `write` is called."""

    def __init__(self, model: ir.Model):
        self._model = model
        self._found: dict[ir.Node, AffineLayer | str] = {}

    def at(self, node: ir.Node) -> AffineLayer | str:
        """The layer at `node`, or what `node` is instead."""
        if node not in self._found:
            self._found[node] = _layer(node)
        return self._found[node]

    def returning(self, value: ir.Value) -> AffineLayer | None:
        """The layer that returns `value`, with its bias, if `value` is a layer's output."""
        node = value.producer()
        if node is not None and node.domain == "" and node.op_type == "Add":
            for each in node.inputs:
                layer = None if each is None else self._made_by(each)
                if layer is not None and layer.adding is node:
                    return layer
        layer = self._made_by(value)
        return layer if layer is not None and layer.output is value else None

    def _made_by(self, value: ir.Value) -> AffineLayer | None:
        node = value.producer()
        layer = None if node is None else self.at(node)
        return layer if isinstance(layer, AffineLayer) else None

    def write(self) -> int:
        """Write the changes of all layers; return the number of copied weights. Raises as `AffineLayer.write`."""
        names = Names(self._model)
        return sum(layer.write(self._model, names) for layer in self._layers())

    def _layers(self) -> Iterator[AffineLayer]:
        return (layer for layer in self._found.values() if isinstance(layer, AffineLayer))


def _layer(node: ir.Node) -> AffineLayer | str:
    if node.domain != "" or node.op_type not in KINDS:
        return f"{node.op_type}, no linear layer"
    weight = node.inputs[1]
    tensor = constant(weight)
    if weight is None or tensor is None or constant(node.inputs[0]) is not None:
        return f"a {node.op_type} whose weight is not a constant"
    if node.op_type != "Conv" and len(tensor.shape) != 2:
        return f"a {node.op_type} whose weight has {len(tensor.shape)} axes, expected 2"
    if tensor.dtype not in FLOATS:
        return f"a {node.op_type} in {tensor.dtype.name.lower()}, expected float32"
    if any(user.op_type == "Gather" for user, _ in weight.uses()):  # a copy would cost more than a scale
        return f"a {node.op_type} whose weight is an embedding table too"
    if node.op_type == "Gemm" and (
        node.attributes.get_int("transA", 0) != 0
        or node.attributes.get_float("alpha", 1.0) != 1
        or node.attributes.get_float("beta", 1.0) != 1
    ):
        return "a Gemm that is not plainly x·W + b"
    return AffineLayer(node, tensor)


def _bias_add(node: ir.Node, outputs: int) -> ir.Node | None:
    """The Add of constants, one per channel, that is the only user of a MatMul's product."""
    product = node.outputs[0]
    found = users(product)
    if product.is_graph_output() or len(product.uses()) != 1 or not found or found[0].op_type != "Add":
        return None
    adding = found[0]
    bias = constant(adding.inputs[1 - _position(adding, product)])
    return adding if adding.domain == "" and per_channel(bias, product, -1, outputs) is not None else None


def _position(node: ir.Node, value: ir.Value) -> int:
    return next(index for index, each in enumerate(node.inputs) if each is value)


def _replace(model: ir.Model, names: Names, node: ir.Node, index: int, array: Array) -> bool:
    """Give input `index` of `node`, a constant, the numbers of `array`; return whether it was copied for that."""
    value = node.inputs[index]
    assert value is not None
    if not np.isfinite(array).all():
        raise GraphError(f"{value.name}: folded, it exceeds {array.dtype}. Leave the pass out, or fix the checkpoint.")
    if value.is_initializer() and len(value.uses()) == 1 and not value.is_graph_output():
        value.const_value = ir.tensor(array, name=value.name)
        value.shape = ir.Shape(array.shape)
        return False
    shared = len(value.uses()) > 1 or value.is_graph_output()
    node.replace_input_with(index, add_initializer(model, names.new(f"{value.name}_folded"), array))
    return shared
