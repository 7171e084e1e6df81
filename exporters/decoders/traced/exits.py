"""Early exits in a traced graph: what is marked in it becomes an output, or a branch that may be skipped."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.exporters.decoders.operators import BRANCH, EXIT, LAST, MARK
from intaglio.runtime.sessions.step import EXIT_LOGITS, LOGITS


def add_exit(model: ir.Model) -> None:
    """Add the output `EXIT_LOGITS` if the states of an exit are marked: what follows the last block, on them."""
    marks = {node.attributes["name"].as_string(): node for node in model.graph if node.op_type == MARK}
    if not marks:
        return
    graph = model.graph
    copies = {marks[LAST].outputs[0]: marks[EXIT].outputs[0]}
    logits = next(value for value in graph.outputs if value.name == LOGITS)
    for node in list(graph):  # copies that the exit does not need are removed later, as all unused nodes
        if copies.keys().isdisjoint(node.inputs):
            continue
        copy = ir.Node(
            node.domain,
            node.op_type,
            [copies.get(value, value) if value is not None else None for value in node.inputs],
            node.attributes.values(),
            num_outputs=len(node.outputs),
            version=node.version,
        )
        copy.metadata_props.update(node.metadata_props)
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            copies[old] = new
        graph.append(copy)
    early = copies[logits]
    early.name = EXIT_LOGITS
    graph.outputs.insert(1, early)
    for node in marks.values():
        value = node.inputs[0]
        assert value is not None
        node.outputs[0].replace_all_uses_with(value)
        graph.remove(node, safe=True)


def add_branches(model: ir.Model) -> None:
    """Replace each node `branch(staying, new, old)`: what only `new` needs is computed if some token is staying.

    The keys and values of a block's tokens are outputs of the graph, so they and what they need stay outside.
    """
    graph = model.graph
    for number, node in enumerate([node for node in graph if node.op_type == BRANCH]):
        staying, new, old = node.inputs
        assert staying is not None and new is not None and old is not None
        inside = _only_for(graph, node, new)
        graph.remove(inside)
        chosen = ir.Node("", "Where", [staying, new, old])
        kept = ir.Node("", "Identity", [old])
        branches = {}
        for name, nodes in (("then_branch", [*inside, chosen]), ("else_branch", [kept])):
            output = nodes[-1].outputs[0]
            output.name, output.type, output.shape = f"{name}_{number}", new.type, new.shape
            branches[name] = ir.Graph([], [output], nodes=nodes, name=f"{name}_{number}")
        count = ir.Node(
            "", "ReduceMax", [_cast(graph, node, staying, ir.DataType.INT64)], [ir.AttrInt64("keepdims", 0)]
        )
        graph.insert_before(node, count)
        some = _cast(graph, node, count.outputs[0], ir.DataType.BOOL)
        choice = ir.Node("", "If", [some], [ir.AttrGraph(name, branch) for name, branch in branches.items()])
        choice.metadata_props.update(node.metadata_props)
        choice.outputs[0].type, choice.outputs[0].shape = new.type, new.shape
        graph.insert_before(node, choice)
        node.outputs[0].replace_all_uses_with(choice.outputs[0])
        graph.remove(node, safe=True)


def _cast(graph: ir.Graph, place: ir.Node, value: ir.Value, to: ir.DataType) -> ir.Value:
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", to)])
    graph.insert_before(place, cast)
    return cast.outputs[0]


def _only_for(graph: ir.Graph, consumer: ir.Node, value: ir.Value) -> list[ir.Node]:
    """The nodes that compute `value` for `consumer` and are needed for nothing else, in order."""
    inside: set[ir.Node] = set()
    for node in reversed(graph):
        if node is consumer or any(each.is_graph_output() for each in node.outputs):
            continue
        uses = [use for each in node.outputs for use in each.uses()]
        if uses and all(
            user in inside or (user is consumer and consumer.inputs[index] is value) for user, index in uses
        ):
            inside.add(node)
    return [node for node in graph if node in inside]
