"""Bring the graph of an older opset to opset 18, from which on a decoder's operators only gain types.

Of the operators that changed between opset 13 and 18, most gained types or an attribute whose default is what they did
before. Two need a change: reductions took their axes as an attribute, and Split needed no number of parts.
"""

from __future__ import annotations

import onnx_ir as ir

from intaglio.errors import SourceError
from intaglio.exporters.decoders.foreign.site import Nodes

OLDEST, NEWER = 13, 18  # before 13, Softmax was over all axes after its own, and more operators had other inputs
REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip


def to_newer_opset(graph: ir.Graph, nodes: Nodes) -> None:
    """Change the nodes of `graph` and of the graphs in it in place. Raises `SourceError` for an opset before 13."""
    version = graph.opset_imports.get("", 1)
    if version < OLDEST:
        raise SourceError(f"its opset is {version}, expected {OLDEST} or later")
    if version >= NEWER:
        return
    for node in graph.all_nodes():
        if node.domain:
            continue
        if node.op_type in REDUCTIONS and (axes := node.attributes.pop("axes", None)) is not None:
            numbers = list(axes.as_ints())
            node.resize_inputs(2)
            node.replace_input_with(1, nodes.constant(f"axes_{'_'.join(map(str, numbers))}", numbers))
        if node.op_type == "Split" and len(node.inputs) == 1:
            node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
    graph.opset_imports[""] = NEWER
