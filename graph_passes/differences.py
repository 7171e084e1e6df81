"""Differences between two graphs: nodes by operator type, and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import onnx_ir as ir

from intaglio.graph_passes.graphs import all_graphs, all_nodes


def differences(before: ir.Model, after: ir.Model) -> dict[str, int]:
    """Count the nodes of each type that were added, removed and changed, and the weights: "Relu added" -> 2.

    Nodes are the same if they have the same operator and the same output names; a node is changed if its inputs or
    attributes differ. A weight is changed if its numbers differ under the same name.
    """
    old, new = _nodes(before), _nodes(after)
    found = Counter(f"{node.op_type} added" for key, node in new.items() if key not in old)
    found += Counter(f"{node.op_type} removed" for key, node in old.items() if key not in new)
    both = old.keys() & new.keys()
    found += Counter(f"{old[key].op_type} changed" for key in both if _content(old[key]) != _content(new[key]))
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
    """Return the tensors of the initializers of the graph and its subgraphs, by name."""
    return {
        str(value.name): value.const_value
        for graph in all_graphs(model)
        for value in graph.initializers.values()
        if value.const_value is not None
    }


def equal(left: ir.TensorProtocol, right: ir.TensorProtocol) -> bool:
    """Whether two tensors are bit-identical."""
    if left is right:
        return True
    if left.dtype != right.dtype or left.shape.numpy() != right.shape.numpy():
        return False
    return left.tobytes() == right.tobytes()


def _nodes(model: ir.Model) -> dict[Hashable, ir.Node]:
    return {(*node.op_identifier(), *(value.name for value in node.outputs)): node for node in all_nodes(model)}


def _content(node: ir.Node) -> tuple[list[str | None], dict[str, str]]:
    """Return the inputs and attributes of a node; nodes in its subgraphs are counted by themselves."""
    inputs = [None if value is None else value.name for value in node.inputs]
    return inputs, {name: _attribute(each) for name, each in node.attributes.items()}


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        tensor = attribute.as_tensor()
        return f"{tensor.dtype} {tensor.shape.numpy()} {tensor.tobytes().hex()}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return ""
    return f"{attribute.ref_attr_name} {attribute.value!r}"
