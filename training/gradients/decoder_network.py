"""DecoderNetwork: a decoder's graph in torch, which returns the gradient of each weight once it is computed.

Autograd would hold the gradients of all weights until the end. Here the products with weights are functions whose
backward pass computes the gradient of their weight, passes it on, and releases it. Activations are not all kept
either (gradient checkpointing): the graph is cut where only a single value with a gradient is passed on, once per
layer; the first run keeps only these values, and each piece runs again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor

from intaglio.errors import GraphError
from intaglio.plugins.packed_matmul.narrow_weights import widen_weights
from intaglio.runtime.engines.engine import Array
from intaglio.training.gradients.decoder_operators import DECODER_FUNCTIONS
from intaglio.training.gradients.weight_products import GradientConsumer, Gradients, Product, Rows, Weight, multiplied


class DecoderNetwork:
    """The graph of a decoder, computed in float32. It takes the weights of `model`, which is invalid afterwards.

    Those in files are mapped, so that no memory is needed for them; the files must not be written to.

    Raises `GraphError` for unsupported operators, including those of compressed weights.
    """

    def __init__(self, model: ir.Model):
        widen_weights(model)
        self._logits = model.graph.outputs[0]
        self._nodes = _needed(list(model.graph), self._logits)
        self._inputs = [value for value in model.graph.inputs if not value.is_initializer()]
        _check(self._nodes)
        matrices = _factors(self._nodes)
        self._constants: dict[ir.Value, Tensor | Weight] = {}
        files: dict[str, npt.NDArray[np.uint8]] = {}
        for value in model.graph.initializers.values():
            tensor, value.const_value = value.const_value, None
            assert tensor is not None
            if value in matrices:
                self._constants[value] = Weight(str(value.name), _array(tensor, files))
            else:
                self._constants[value] = _constant(tensor)
        self._last_uses = _last_uses(self._nodes)
        self._uses, self._moving = _follow(self._nodes, matrices)
        self._pieces = self._cut()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> stored shape of the weights whose gradients are computed."""
        weights = (value for value in self._constants.values() if isinstance(value, Weight))
        return {weight.name: weight.array.shape for weight in weights}

    def gradients(
        self, feeds: Mapping[str, Tensor], loss: Callable[[Tensor], Tensor], consume: GradientConsumer
    ) -> float:
        """Return `loss` of the first output; call `consume` with the gradient of each weight, in its stored shape.

        The gradient of a weight with several uses, such as a tied table, is passed on after the last of them.
        """
        values: dict[ir.Value, Any] = dict(self._constants)
        computed = {id(feed): _as_computed(feed) for feed in feeds.values()}
        values.update((value, computed[id(feeds[str(value.name)])]) for value in self._inputs)
        starts = []
        with torch.no_grad():
            for piece in self._pieces[:-1]:
                starts.append(dict(values))
                self._run(piece, values, None)
        starts.append(values)  # of the last piece, which runs once
        gradients = Gradients(consume, self._uses)
        result, slopes = 0.0, dict[ir.Value, Tensor]()
        for piece in reversed(self._pieces):
            values = starts.pop()
            ends = [value for value in values if value in self._moving and values[value].is_floating_point()]
            leaves = {value: values[value].detach().requires_grad_() for value in ends}
            values.update(leaves)
            self._run(piece, values, gradients)
            if self._logits in values:
                end = loss(values[self._logits])
                result = end.item()
                end.backward()  # type: ignore[no-untyped-call]
            else:
                torch.autograd.backward([values[value] for value in slopes], list(slopes.values()))
            slopes = {value: leaf.grad for value, leaf in leaves.items() if leaf.grad is not None}
        return result

    def _cut(self) -> list[list[ir.Node]]:
        """The nodes in pieces; each passes a single value with a gradient to the next.

        That may be done before the attention of a layer and before its MLP: every second place is taken.
        """
        pieces: list[list[ir.Node]] = [[]]
        taken = {value for values in self._last_uses.values() for value in values}
        live = 0
        for node in self._nodes:
            pieces[-1].append(node)
            live += sum(value in self._moving for value in node.outputs if value in taken)
            live -= sum(value in self._moving for value in self._last_uses.get(node, ()))
            if live == 1:
                pieces.append([])
        *others, head = [piece for piece in pieces if piece]
        return [*([*one, *two] for one, two in zip_longest(others[::2], others[1::2], fillvalue=())), head]

    def _run(self, nodes: list[ir.Node], values: dict[ir.Value, Any], gradients: Gradients | None) -> None:
        """Add the nodes' outputs to `values`, and remove values that are no longer needed."""
        for node in nodes:
            inputs = [None if value is None else values[value] for value in node.inputs]
            made = _compute(node, inputs, gradients)
            values.update(zip(node.outputs, made if isinstance(made, list) else [made], strict=False))
            for value in self._last_uses.get(node, ()):
                del values[value]


def _compute(node: ir.Node, inputs: list[Any], gradients: Gradients | None) -> Any:
    weights = [given for given in inputs if isinstance(given, Weight)]
    if not weights:
        return DECODER_FUNCTIONS[node.op_type](node, *inputs)
    weight = weights[0]
    if node.op_type == "Transpose":
        return Weight(weight.name, weight.array, not weight.transposed)
    if node.op_type in ("Cast", "Identity"):
        return weight
    if node.op_type == "MatMul":
        if gradients is None:
            return multiplied(inputs[0], weight.matrix())
        return Product.apply(inputs[0], gradients.anchor, weight, gradients)  # type: ignore[no-untyped-call]
    if gradients is None:
        return weight.rows(inputs[1])
    return Rows.apply(inputs[1], gradients.anchor, weight, gradients)  # type: ignore[no-untyped-call]


def _needed(nodes: list[ir.Node], output: ir.Value) -> list[ir.Node]:
    """The nodes that `output` depends on, in order."""
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(value for value in node.inputs if value is not None)
            kept.append(node)
    return kept[::-1]


def _last_uses(nodes: list[ir.Node]) -> dict[ir.Node, list[ir.Value]]:
    """The values that no later node reads, by node."""
    last = {value: node for node in nodes for value in node.inputs if value is not None}
    found: dict[ir.Node, list[ir.Value]] = {}
    for value, node in last.items():
        found.setdefault(node, []).append(value)
    return found


def _follow(nodes: list[ir.Node], matrices: set[ir.Value]) -> tuple[dict[str, int], set[ir.Value]]:
    """The number of uses of each weight, by name; and the values whose gradients are needed."""
    names = {value: str(value.name) for value in matrices}
    uses: dict[str, int] = {}
    moving: set[ir.Value] = set()
    for node in nodes:
        weight = next((names[value] for value in node.inputs if value in names), None)
        if weight is not None and node.op_type in _SAME:
            names[node.outputs[0]] = weight
        elif weight is not None or not moving.isdisjoint(node.inputs):
            moving.update(node.outputs)
        if weight is not None and node.op_type not in _SAME:
            uses[weight] = uses.get(weight, 0) + 1
    return uses, moving


def _factors(nodes: list[ir.Node]) -> set[ir.Value]:
    """The initializers that are second factors of MatMuls, directly or transposed, without other unsupported uses."""
    found = set()
    for node in nodes:
        if node.op_type != "MatMul":
            continue
        value = node.inputs[1]
        while value is not None and (producer := value.producer()) and producer.op_type in _SAME:
            value = producer.inputs[0]
        if value is not None and value.is_initializer() and len(value.shape or ()) == 2 and _only_factor(value):
            found.add(value)
    return found


_SAME = ("Transpose", "Cast", "Identity")


def _only_factor(value: ir.Value) -> bool:
    """Whether the value is used only in products and for lookups of rows of the stored table."""
    for node, index in value.uses():
        if node.op_type in _SAME:
            if not _only_factor(node.outputs[0]):
                return False
        elif (node.op_type, index) == ("Gather", 0) and value.is_initializer():
            if node.attributes.get_int("axis", 0) != 0:
                return False
        elif (node.op_type, index) != ("MatMul", 1):
            return False
    return True


def _constant(tensor: ir.TensorProtocol) -> Tensor:
    """A tensor in its own memory, fractions in float32."""
    array = torch.from_numpy(np.array(tensor.numpy()))
    if isinstance(tensor, ir.ExternalTensor):
        tensor.release()
    return _as_computed(array)


def _as_computed(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def _array(tensor: ir.TensorProtocol, files: dict[str, npt.NDArray[np.uint8]]) -> Array:
    """The array of a tensor; one that is in a file is a part of it, and the file is mapped once.

    onnx_ir maps a file once for each of its tensors: with 70 billion weights, that is more than half of all addresses.
    """
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.numpy()
    path, start = str(tensor.path), tensor.offset or 0
    if path not in files:
        files[path] = np.memmap(path, np.uint8, "r")  # what may be written to would count as memory, all of it
    part = files[path][start : start + tensor.nbytes]
    return part.view(tensor.dtype.numpy()).reshape(tensor.shape.numpy())


def _check(nodes: list[ir.Node]) -> None:
    for node in nodes:
        if node.domain != "" or node.op_type not in DECODER_FUNCTIONS:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            if node.op_type == "If":
                raise GraphError(
                    f"{name} {node.name}: tokens may skip a part of the model, which has no gradient then. "
                    "Take a recipe that needs no sensitivities, such as rtn."
                )
            raise GraphError(
                f"{name} {node.name or node.outputs[0].name}: its gradient is not implemented. "
                "Compute sensitivities on the exported bundle, before its weights are compressed, or take a recipe "
                "that needs none: rtn, gptq, or lut with unweighted: true."
            )
