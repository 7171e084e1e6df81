"""ONNX Runtime's own operators for norms, written in ONNX's."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.exporters.decoders.foreign.site import Nodes, given

SKIPS = {"SkipSimplifiedLayerNormalization": "RMSNormalization", "SkipLayerNormalization": "LayerNormalization"}


def standard_norms(graph: ir.Graph, nodes: Nodes) -> None:
    """Replace each norm that only ONNX Runtime knows, with the sum of residual and branch that some compute, too."""
    for node in list(graph):
        if (node.domain, node.op_type) in (
            ("", "SimplifiedLayerNormalization"),
            ("com.microsoft", "SimplifiedLayerNormalization"),
        ):
            if len(node.outputs) > 1 and node.outputs[1].uses():
                continue
            epsilon, axis = node.attributes.get_float("epsilon", 1e-5), node.attributes.get_int("axis", -1)
            with nodes.before(node):
                found = nodes.op("RMSNormalization", node.inputs[:2], epsilon=epsilon, axis=axis)
            replace(graph, node, {0: found})
        elif node.domain == "com.microsoft" and node.op_type in SKIPS:
            _skip(graph, node, nodes)


def _skip(graph: ir.Graph, node: ir.Node, nodes: Nodes) -> None:
    if any(value.uses() for value in node.outputs[1:3]):  # mean and inverse deviation
        return
    simple = node.op_type == "SkipSimplifiedLayerNormalization"
    x, skip, scale = node.inputs[:3]
    shift, bias = (None, given(node, 3)) if simple else (given(node, 3), given(node, 4))
    with nodes.before(node):
        total = nodes.op("Add", [x, skip])
        if bias is not None:
            total = nodes.op("Add", [total, bias])
        epsilon = node.attributes.get_float("epsilon", 1e-12)
        found = nodes.op(
            SKIPS[node.op_type], [total, scale, *([shift] if shift is not None else [])], epsilon=epsilon, axis=-1
        )
    replace(graph, node, {0: found, 3: total})


def replace(graph: ir.Graph, node: ir.Node, found: dict[int, ir.Value]) -> None:
    """Let the values `found` take the place of outputs of `node`, which is removed."""
    for index, value in found.items():
        if index < len(node.outputs):
            old = node.outputs[index]
            name, old.name = old.name, None
            value.type, value.shape = value.type or old.type, old.shape
            old.replace_all_uses_with(value, replace_graph_outputs=True)
            value.name = name
    graph.remove(node, safe=True)
