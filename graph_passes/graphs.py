"""What several passes do with a graph: read constants, name new values, replace and remove nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

Array = npt.NDArray[np.generic]


def opset(model: ir.Model) -> int:
    """The version of the standard operators that the graph uses; 0 when it uses none."""
    return model.opset_imports.get("", 0)


def all_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes of the graph and of its subgraphs (bodies of If and Loop), not of the model's functions."""
    return list(ir.traversal.RecursiveGraphIterator(model.graph))


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Every value of the graph and of its subgraphs: inputs, initializers, and what nodes give."""
    seen: set[ir.Value] = set()
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            if value not in seen:
                seen.add(value)
                yield value


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The graph and its subgraphs, outermost first."""
    yield model.graph
    for node in all_nodes(model):
        yield from _bodies(node)


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that the node runs, as If, Loop and Scan do."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def has_subgraphs(node: ir.Node) -> bool:
    """Whether the node runs graphs of its own."""
    return any(True for _ in _bodies(node))


def used_values(node: ir.Node) -> list[ir.Value]:
    """What the node takes: its inputs, and what the graphs that it runs take from around them."""
    used = [value for value in node.inputs if value is not None]
    for body in _bodies(node):
        inside = {*body.inputs, *body.initializers.values()}
        for inner in body:
            used += [value for value in used_values(inner) if value not in inside]
            inside.update(inner.outputs)
    return used


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or a Constant node; None for all else.

    An initializer that is also a graph input can be fed another content, so it is no constant.
    """
    if value is None or value.is_graph_input():
        return None
    if value.is_initializer():
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain != "" or "sparse_value" in node.attributes:
        return None
    return ir.convenience.get_const_tensor(value)


def integers(node: ir.Node, name: str, index: int) -> list[int] | None:
    """A list such as `axes`, which older opsets have as the attribute `name` and newer ones as the input `index`.

    None when the node has neither, or when the input is no constant.
    """
    if name in node.attributes:
        return list(node.attributes[name].as_ints())
    if index < len(node.inputs) and (tensor := constant(node.inputs[index])) is not None:
        return [int(number) for number in tensor.numpy().reshape(-1)]
    return None


def rank(value: ir.Value) -> int | None:
    """The number of axes, where the graph states it."""
    if value.shape is None:
        tensor = constant(value)
        return None if tensor is None else len(tensor.shape)
    return len(value.shape)


class Names:
    """Gives names that no value of the model has yet."""

    def __init__(self, model: ir.Model):
        self._taken = {value.name for value in all_values(model)}

    def new(self, wish: str) -> str:
        """`wish`, or `wish` with the first number that makes it new."""
        name, number = wish, 1
        while name in self._taken:
            name, number = f"{wish}_{number}", number + 1
        self._taken.add(name)
        return name


def add_initializer(model: ir.Model, name: str, array: Array) -> ir.Value:
    """A new constant of the outermost graph, which every subgraph sees too."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def add_constant_before(node: ir.Node, array: Array, name: str) -> ir.Value:
    """The output of a new Constant node before `node`; unlike an initializer it may stand in a function too."""
    made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array, name=name))], num_outputs=1)
    assert node.graph is not None
    node.graph.insert_before(node, made)
    output = made.outputs[0]
    output.name = name
    output.shape = ir.Shape(array.shape)
    output.dtype = ir.tensor(array).dtype
    return output


def replace_value(
    old: ir.Value, op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Any]
) -> ir.Node:
    """Compute `old` by a new standard node in the place of its producer; what is no longer used is removed.

    The new output has the name, the type and the shape of `old`, also where `old` is an output of the graph.
    """
    producer = old.producer()
    assert producer is not None and producer.graph is not None
    made = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
    node = ir.Node("", op_type, inputs, made, num_outputs=1, name=producer.name)
    node.metadata_props.update(producer.metadata_props)
    producer.graph.insert_before(producer, node)
    take_over(old, node.outputs[0])
    remove_if_dead(producer)
    return node


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let `new` stand wherever `old` stood, under its name and with its type; `old` is left without a name."""
    name, new.type, new.shape = old.name, old.type, old.shape
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name = name


def remove_if_dead(node: ir.Node) -> None:
    """Remove `node` if nothing uses it, and then what it alone used: nodes and initializers."""
    pending = [node]
    while pending:
        node = pending.pop()
        if node.graph is None or any(value.uses() or value.is_graph_output() for value in node.outputs):
            continue
        inputs = [value for value in node.inputs if value is not None]
        inputs += _release_bodies(node)
        node.graph.remove(node, safe=True)
        for value in inputs:
            producer = value.producer()
            if producer is not None:
                pending.append(producer)
            else:
                remove_initializer_if_dead(value)


def _release_bodies(node: ir.Node) -> list[ir.Value]:
    """Let the nodes in the bodies of a node that is removed use nothing any more; what they used."""
    used: list[ir.Value] = []
    for body in _bodies(node):
        for inner in ir.traversal.RecursiveGraphIterator(body):
            for index, value in enumerate(inner.inputs):
                if value is not None:
                    used.append(value)
                    inner.replace_input_with(index, None)
    return used


def remove_initializer_if_dead(value: ir.Value) -> None:
    """Remove an initializer that nothing uses, and that is not an input or output of a graph."""
    unused = value.is_initializer() and not (value.uses() or value.is_graph_input() or value.is_graph_output())
    if unused and value.graph is not None and value.name is not None:
        del value.graph.initializers[value.name]


def infer_shapes(model: ir.Model) -> None:
    """Fill in the dtypes and shapes that follow from the graph; what cannot be inferred stays as it is."""
    infer = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    with _quiet():
        infer(model)
        if _infer_ranks(model):
            infer(model)


def _infer_ranks(model: ir.Model) -> bool:
    """The length of the shape that Reshape is given is the number of axes, which ONNX does not infer."""
    found = False
    for node in all_nodes(model):
        if node.op_type != "Reshape" or node.domain != "" or node.outputs[0].shape is not None:
            continue
        target = node.inputs[1] if len(node.inputs) == 2 else None
        if target is not None and target.shape is not None and isinstance(count := target.shape[0], int):
            node.outputs[0].shape = ir.Shape([None] * count)
            found = True
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the inference's own log from the terminal: an operator that it does not know is no news."""
    log = logging.getLogger("onnx_ir.passes.common.shape_inference")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
