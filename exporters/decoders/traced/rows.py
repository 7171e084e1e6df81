"""Keep the axes of states that a model reshapes to rows and back, as OPT does in the second half of its blocks.

What computes each row alone gives the same results for [batch, tokens, width] as for [batch · tokens, width]. Adapters
of a row of the batch, pruning and the roofline need to know the batch and the tokens.
"""

from __future__ import annotations

import onnx_ir as ir

Axes = list[int | ir.SymbolicDim]
ROWWISE = {"Add", "Cast", "Div", "Gelu", "Identity", "Mul", "Relu", "Sigmoid", "Sub", "Tanh"}
NORMS = {"LayerNormalization", "RMSNormalization"}


def keep_axes(model: ir.Model) -> None:
    """Remove each pair of Reshapes [a, b, c] -> [a · b, c] and [a · b, d] -> [a, b, d] between which rows stay alone.

    Left are rows that are looked at together, such as those that choose experts, or that the graph returns.
    """
    for node in list(model.graph):
        axes = _joined_axes(node)
        if axes is not None and node.graph is not None and (found := _between(node, axes)) is not None:
            ends, inside = found
            for each in inside:
                (value,) = each.outputs
                value.shape = ir.Shape([*axes, *list(value.shape or ())[-1:]])
            for each in ends:
                x = each.inputs[0]
                assert x is not None
                each.outputs[0].replace_all_uses_with(x)
                model.graph.remove(each, safe=True)


def _joined_axes(node: ir.Node) -> Axes | None:
    """The axes [a, b] that a Reshape joins, or None."""
    before, after = _shapes(node)
    if len(before) != 3 or len(after) != 2 or before[2] != after[1] or not isinstance(after[1], int):
        return None
    return before[:2]


def _shapes(node: ir.Node) -> tuple[Axes, Axes]:
    """The shapes of a Reshape's input and output; empty for another node, or where they are not known."""
    x, result = node.inputs[0] if node.op_type == "Reshape" else None, node.outputs[0].shape
    return (list(x.shape), list(result)) if x is not None and x.shape is not None and result is not None else ([], [])


def _between(first: ir.Node, axes: Axes) -> tuple[list[ir.Node], list[ir.Node]] | None:
    """The Reshapes that join and part the axes of what follows from `first`, and the nodes between; None: leave all."""
    ends, inside, rows = [first], list[ir.Node](), [first.outputs[0]]
    for value in rows:  # grows
        if value.is_graph_output():
            return None
        for node in dict.fromkeys(node for node, _ in value.uses()):
            if node in inside or node in ends:
                continue
            before, after = _shapes(node)
            if len(before) == 2 and len(after) == 3 and after[:2] == axes:
                ends.append(node)
                continue
            if not _is_rowwise(node, value) or len(node.outputs) != 1 or node.graph is not first.graph:
                return None
            inside.append(node)
            rows.append(node.outputs[0])
            others = [each.producer() for each in node.inputs if each is not None and each not in rows]
            joining = [each for each in others if each is not None and _joined_axes(each) == axes]
            ends += [each for each in joining if each not in ends]
            rows += [each.outputs[0] for each in joining if each.outputs[0] not in rows]
    if all(each in rows or _is_constant(each) for node in inside for each in node.inputs):
        return ends, inside
    return None


def _is_rowwise(node: ir.Node, row: ir.Value) -> bool:
    """Whether a node computes each of the rows `row` alone, if its other inputs are rows or constants of all rows."""
    if node.op_type in ("MatMul", *NORMS):
        return node.inputs[0] is row and all(each is None or each.producer() is None for each in node.inputs[1:])
    return node.op_type in ROWWISE and all(
        each is None or not _is_constant(each) or len(each.shape or ()) < 2 for each in node.inputs
    )


def _is_constant(value: ir.Value | None) -> bool:
    return value is None or value.const_value is not None
