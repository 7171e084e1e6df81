"""The axis of a Reduce node."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.graph_passes.graphs import integers, rank


def reduced_axis(node: ir.Node) -> int | None:
    """Return the axis that a Reduce node reduces and keeps with length 1: -1 for the last, else from 0.

    None if it reduces several axes or drops them, or if they are unknown.
    """
    keeps = "keepdims" not in node.attributes or node.attributes["keepdims"].as_int() == 1
    axes = integers(node, "axes", 1)
    if axes is None or len(axes) != 1 or not keeps or node.inputs[0] is None:
        return None
    axis, count = axes[0], rank(node.inputs[0])
    if not count:
        return axis
    return -1 if axis % count == count - 1 else axis % count
