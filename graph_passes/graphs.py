"""Graph operations shared by passes: read constants, name new values, replace and remove nodes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from intaglio.bundle.model_file import without_data
from intaglio.plugins.nodes import take_over

Array = npt.NDArray[np.generic]

KNOWN_UP_TO = 1000  # bytes; shape inference reads smaller constants, such as lengths and axes


def opset(model: ir.Model) -> int:
    """Return the graph's version of the standard opset; 0 if it uses none."""
    return model.opset_imports.get("", 0)


def all_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of the graph and its subgraphs (bodies of If and Loop), not of the model's functions."""
    return list(ir.traversal.RecursiveGraphIterator(model.graph))


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every value of the graph and its subgraphs: inputs, initializers, and outputs of nodes."""
    seen: set[ir.Value] = set()
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            if value not in seen:
                seen.add(value)
                yield value


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the graph and its subgraphs, outermost first."""
    yield model.graph
    for node in all_nodes(model):
        yield from _bodies(node)


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the subgraphs of a node, such as If, Loop and Scan."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def has_subgraphs(node: ir.Node) -> bool:
    """Whether the node has subgraphs."""
    return any(True for _ in _bodies(node))


def used_values(node: ir.Node) -> list[ir.Value]:
    """Return the values that the node uses: its inputs, and the outer values used in its subgraphs."""
    used = [value for value in node.inputs if value is not None]
    for body in _bodies(node):
        inside = {*body.inputs, *body.initializers.values()}
        for inner in body:
            used += [value for value in used_values(inner) if value not in inside]
            inside.update(inner.outputs)
    return used


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or a Constant node; None for anything else.

    An initializer that is also a graph input can be overridden, so it is not a constant.
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
    """Read a list such as `axes`, which is the attribute `name` in older opsets and the input `index` in newer ones.

    None if the node has neither, or if the input is not a constant.
    """
    if name in node.attributes:
        return list(node.attributes[name].as_ints())
    if index < len(node.inputs) and (tensor := constant(node.inputs[index])) is not None:
        return [int(number) for number in tensor.numpy().reshape(-1)]
    return None


def rank(value: ir.Value) -> int | None:
    """Return the number of axes, if known."""
    if value.shape is None:
        tensor = constant(value)
        return None if tensor is None else len(tensor.shape)
    return len(value.shape)


class Names:
    """Creates names that no value of the model has yet."""

    def __init__(self, model: ir.Model):
        self._taken = {value.name for value in all_values(model)}

    def new(self, wish: str) -> str:
        """Return `wish`, with a number appended if it is taken."""
        name, number = wish, 1
        while name in self._taken:
            name, number = f"{wish}_{number}", number + 1
        self._taken.add(name)
        return name


def add_initializer(model: ir.Model, name: str, array: Array) -> ir.Value:
    """Add a constant to the outermost graph, visible in every subgraph."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def add_constant_before(node: ir.Node, array: Array, name: str) -> ir.Value:
    """Insert a Constant node before `node` and return its output; unlike an initializer it works in functions too."""
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
    """Replace the producer of `old` by a new standard node; remove nodes that become unused.

    The new output has the name, the type and the shape of `old`, also if `old` is an output of the graph.
    """
    producer = old.producer()
    assert producer is not None and producer.graph is not None
    node = ir.node(op_type, inputs, attributes, name=producer.name)
    node.metadata_props.update(producer.metadata_props)
    producer.graph.insert_before(producer, node)
    take_over(old, node.outputs[0])
    remove_if_dead(producer)
    return node


def remove_if_dead(node: ir.Node) -> None:
    """Remove `node` if it is unused, and then the nodes and initializers that only it used."""
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
    """Disconnect the nodes in the bodies of a removed node; return the values they used."""
    used: list[ir.Value] = []
    for body in _bodies(node):
        for inner in ir.traversal.RecursiveGraphIterator(body):
            for index, value in enumerate(inner.inputs):
                if value is not None:
                    used.append(value)
                    inner.replace_input_with(index, None)
    return used


def remove_initializer_if_dead(value: ir.Value) -> None:
    """Remove an initializer if it is unused and not an input or output of a graph."""
    unused = value.is_initializer() and not (value.uses() or value.is_graph_input() or value.is_graph_output())
    if unused and value.graph is not None and value.name is not None:
        del value.graph.initializers[value.name]


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes of the graph's values; those that cannot be inferred do not change."""
    _infer(model)
    if _infer_ranks(model):
        _infer(model)


def _infer(model: ir.Model) -> None:
    """Run ONNX's shape inference without the large weights, and keep its results.

    The pass of onnx_ir takes over only the dtype, so that a sequence without a stated type becomes a tensor.
    """
    initializers = model.graph.initializers
    large = {
        name: value.const_value
        for name, value in initializers.items()
        if value.const_value is not None and value.const_value.nbytes > KNOWN_UP_TO
    }
    try:
        with without_data(model, large):
            proto = ir.serde.serialize_model(model)
        _declare(proto.graph, large)
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
        _drop_maps(inferred.graph)
        found = ir.serde.deserialize_model(inferred)
    except Exception:  # a damaged graph can raise anything; the checker says what is wrong with it
        return
    for mine, theirs in zip(model.graphs(), found.graphs(), strict=True):
        named = ir.convenience.create_value_mapping(theirs)
        for name, value in ir.convenience.create_value_mapping(mine).items():
            if (other := named.get(name)) is not None:
                value.type = other.type or value.type
                value.shape = value.shape if other.shape is None else other.shape


def _declare(graph: onnx.GraphProto, names: Container[str]) -> None:
    """Replace the initializers `names` by inputs of the same dtypes and shapes."""
    tensors, inputs = list(graph.initializer), {value.name for value in graph.input}
    del graph.initializer[:]
    graph.initializer.extend(tensor for tensor in tensors if tensor.name not in names)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in tensors
        if tensor.name in names and tensor.name not in inputs
    )


def _drop_maps(graph: onnx.GraphProto) -> None:
    """Remove the values of map types, which onnx_ir does not read."""
    kept = [value for value in graph.value_info if not _holds_a_map(value.type)]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _holds_a_map(kind: onnx.TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _holds_a_map(kind.sequence_type.elem_type)
    return kind.HasField("map_type")


def _infer_ranks(model: ir.Model) -> bool:
    """Infer the rank of Reshape outputs from the length of the shape input, which ONNX does not do."""
    found = False
    for node in all_nodes(model):
        if node.op_type != "Reshape" or node.domain != "" or node.outputs[0].shape is not None:
            continue
        target = node.inputs[1] if len(node.inputs) == 2 else None
        if target is not None and target.shape is not None and isinstance(count := target.shape[0], int):
            node.outputs[0].shape = ir.Shape([None] * count)
            found = True
    return found
