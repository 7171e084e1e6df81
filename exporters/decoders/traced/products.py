"""One form for products with weights: the tracer writes those of rows [tokens, width] as Gemm."""

from __future__ import annotations

import onnx_ir as ir


def split_gemm(model: ir.Model) -> None:
    """Replace each Gemm `x · Wᵀ + b` by MatMul and Add, whose weights every pass compresses."""
    graph = model.graph
    for node in [node for node in graph if node.op_type == "Gemm" and _is_linear(node)]:
        x, weight, *bias = node.inputs
        made = []
        if node.attributes.get_int("transB", 0):
            made.append(ir.Node("", "Transpose", [weight], [ir.AttrInt64s("perm", [1, 0])]))
            weight = made[-1].outputs[0]
        made.append(ir.Node("", "MatMul", [x, weight]))
        if bias and bias[0] is not None:
            made.append(ir.Node("", "Add", [made[-1].outputs[0], bias[0]]))
        for each in made:
            each.metadata_props.update(node.metadata_props)
        graph.insert_before(node, made)
        result = made[-1].outputs[0]
        result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
        node.outputs[0].replace_all_uses_with(result)
        graph.remove(node, safe=True)


def _is_linear(node: ir.Node) -> bool:
    get = node.attributes
    return (get.get_float("alpha", 1.0), get.get_float("beta", 1.0), get.get_int("transA", 0)) == (1.0, 1.0, 0)
