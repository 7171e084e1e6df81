"""Attention to a cache by our kernel, which reads the slots that are attended to, where ONNX Runtime's reads them all.

ONNX Runtime 1.31's takes 2 to 6 times as long for a full cache, and more for rows of different lengths.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from intaglio.plugins.registry import DOMAIN
from intaglio.runtime.engines.onnx_nodes import all_nodes, import_our_domain

if TYPE_CHECKING:
    import onnx

OPERATOR, QUANTIZE = "CachedAttention", "QuantizeCache"  # the second: of `quantized_cache`
FLOAT, BOOL, FLOAT16, BFLOAT16 = 1, 9, 10, 16  # of onnx.TensorProto, which is not loaded here
FLOATS = (FLOAT, FLOAT16, BFLOAT16)
# Attributes that change nothing at these values, which ONNX Runtime states in graphs that it stores.
UNSET = {"is_causal": 0, "qk_matmul_output_mode": 0, "softcap": 0}


def attend_by_our_kernel(model: onnx.ModelProto, floats: Collection[int] = (FLOAT,)) -> None:
    """Replace each Attention to buffers of a cache, of one of the types `floats`, and with a mask of bools.

    The operator computes in float32: for others, `quantize_caches` puts casts around it. A buffer is an input of the
    graph or what TensorScatter writes into one; an If may have the attention to it. Queries are of the keys' type and
    rank, as the operator has it, and the kernel broadcasts the mask.
    """
    graph = model.graph
    kinds = {
        value.name: (value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim))
        for value in (*graph.value_info, *graph.output, *graph.input)
    }
    buffers = {value.name for value in graph.input}
    buffers |= {node.output[0] for node in graph.node if node.op_type == "TensorScatter" and node.input[0] in buffers}
    found = False
    for node in all_nodes(graph.node):
        if node.op_type != "Attention" or node.domain or len(node.input) != 4 or len(node.output) != 1:
            continue
        _, key, value, mask = node.input
        cached = buffers.issuperset((key, value)) and kinds.get(key) == kinds.get(value)
        cached = cached and kinds.get(key) in [(kind, 4) for kind in floats]
        if cached and kinds.get(mask, (0, 0))[0] == BOOL and _is_scaled(node):
            node.op_type, node.domain, found = OPERATOR, DOMAIN, True
            for attribute in [each for each in node.attribute if each.name in UNSET]:
                node.attribute.remove(attribute)
    if found:
        import_our_domain(model)


def _is_scaled(node: onnx.NodeProto) -> bool:
    """Whether the node states its scale, and nothing else that changes the result."""
    stated = {each.name: each.f or each.i for each in node.attribute}
    return stated.pop("scale", None) is not None and stated.items() <= UNSET.items()
