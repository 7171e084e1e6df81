"""The logits of the wanted tokens alone: their states are gathered before the head, where the graph allows it."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.exporters.decoders.foreign.site import Nodes

HEADS = ("MatMul", "MatMulNBits")
# Operators that compute the numbers of each token for themselves, given one input with tokens, and constants.
PER_TOKEN = (*HEADS, "Add", "Mul", "Div", "Sub", "Tanh", "Cast", "Identity")


def gather_wanted(graph: ir.Graph, logits: ir.Value, indices: ir.Value, nodes: Nodes) -> ir.Value:
    """The logits [batch, wanted, vocab] of the tokens at `indices` [batch, wanted], in place of those of all tokens.

    The states before the head are gathered, as a head for many tokens takes long and its logits much memory.
    """
    user: ir.Node | None = None
    index, states = 0, logits
    while user is None or user.op_type not in HEADS:
        node = states.producer()
        if node is None or node.op_type not in PER_TOKEN or (user is not None and len(states.uses()) > 1):
            break
        tokens = [place for place, value in enumerate(node.inputs) if value is not None and not _is_constant(value)]
        if len(tokens) != 1 or (node.op_type in HEADS and tokens != [0]):
            break
        user, index = node, tokens[0]
        states = node.inputs[index]  # type: ignore[assignment]
    made = _gathered(states, indices, nodes)
    if user is None:  # behind the last node, whose own outputs cannot be read before it
        last = logits.producer()
        assert last is not None
        graph.insert_after(last, made)
        return made[-1].outputs[0]
    graph.insert_before(user, made)
    user.replace_input_with(index, made[-1].outputs[0])
    return logits


def _gathered(states: ir.Value, indices: ir.Value, nodes: Nodes) -> list[ir.Node]:
    last = nodes.constant("last_axis", [-1])
    placed = ir.node("Unsqueeze", [indices, last])
    found = ir.node("GatherND", [states, placed.outputs[0]], {"batch_dims": 1})
    found.outputs[0].type = states.type
    return [placed, found]


def _is_constant(value: ir.Value) -> bool:
    if value.const_value is not None or value.is_initializer():
        return True
    node = value.producer()
    return node is not None and all(each is not None and _is_constant(each) for each in node.inputs)
