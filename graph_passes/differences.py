"""What one graph has and another has not: nodes by operator type, and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import onnx_ir as ir

from intaglio.graph_passes.graphs import all_graphs, all_nodes


def differences(before: ir.Model, after: ir.Model) -> dict[str, int]:
    """How many nodes of each type were added, removed and changed, and how many weights: "Relu added" -> 2.

    A node is the same one if its outputs have the same names, and changed if its operator, inputs or attributes are
    others. A weight is changed if one of the same name has other numbers.
    """
    old, new = _nodes(before), _nodes(after)
    found: Counter[str] = Counter()
    for outputs, node in new.items():
        if outputs not in old:
            found[f"{node.op_type} added"] += 1
        elif _content(old[outputs]) != _content(node):
            found[f"{node.op_type} changed"] += 1
    for outputs, node in old.items():
        if outputs not in new:
            found[f"{node.op_type} removed"] += 1
    old_weights, new_weights = weights(before), weights(after)
    kinds = {
        "weights added": new_weights.keys() - old_weights.keys(),
        "weights removed": old_weights.keys() - new_weights.keys(),
        "weights changed": {
            name for name in old_weights.keys() & new_weights.keys() if not equal(old_weights[name], new_weights[name])
        },
    }
    return {**dict(sorted(found.items())), **{kind: len(names) for kind, names in kinds.items() if names}}


def weights(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The tensors of the initializers of the graph and its subgraphs, by name."""
    return {
        str(value.name): value.const_value
        for graph in all_graphs(model)
        for value in graph.initializers.values()
        if value.const_value is not None
    }


def equal(left: ir.TensorProtocol, right: ir.TensorProtocol) -> bool:
    """Whether two tensors are the same, to the bit."""
    if left is right:
        return True
    if left.dtype != right.dtype or left.shape.numpy() != right.shape.numpy():
        return False
    return left.tobytes() == right.tobytes()


def _nodes(model: ir.Model) -> dict[tuple[str, ...], ir.Node]:
    return {tuple(str(value.name or "") for value in node.outputs): node for node in all_nodes(model)}


def _content(node: ir.Node) -> Hashable:
    """What makes a node what it is; the nodes of graphs among its attributes count by themselves."""
    inputs = tuple(None if value is None else value.name for value in node.inputs)
    attributes = tuple(sorted((name, _attribute(each)) for name, each in node.attributes.items()))
    return node.domain, node.op_type, inputs, attributes


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        tensor = attribute.as_tensor()
        return f"{tensor.dtype} {tensor.shape.numpy()} {tensor.tobytes().hex()}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return ""
    return f"{attribute.ref_attr_name} {attribute.value!r}"
