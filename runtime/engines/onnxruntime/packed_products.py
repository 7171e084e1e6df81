"""Products with constant float weights by our kernel, which reads a packed weight once for a few rows of x.

ONNX Runtime's reaches two thirds of the memory's bandwidth with the rows of a decode step, and has none for weights of
16 bits beside activations of 32: it widens them when it opens the graph, and so reads twice the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from intaglio.bundle.manifest import Manifest
from intaglio.plugins.registry import DOMAIN
from intaglio.runtime.engines.onnxruntime.partial_graph import all_nodes
from intaglio.runtime.engines.onnxruntime.session_operators import import_our_domain

if TYPE_CHECKING:
    import onnx

OPERATOR = "PackedMatMul"
FLOAT, FLOAT16, BFLOAT16, INT = 1, 10, 16, 2  # of onnx.TensorProto, the last of AttributeProto; not loaded here


def has_narrow_weights(manifest: Manifest) -> bool:
    """Whether weights of 16 bits are beside activations of 32, as the pass NarrowWeights stores them."""
    return any(each.name == "narrow_weights" and each.counts for each in manifest.passes)


def pack_products(model: onnx.ModelProto) -> None:
    """Replace each MatMul of float32 by a constant matrix, also one that is of 16 bits or transposed in the file.

    The nodes that widen or transpose it are removed where nothing else reads them.
    """
    graph = model.graph
    types = {each.name: each.data_type for each in graph.initializer if len(each.dims) == 2}
    for value in graph.input:  # another weight may be given for it
        types.pop(value.name, None)
    makers = {node.output[0]: node for node in graph.node if node.op_type in ("Cast", "Transpose") and not node.domain}
    found = False
    for node in all_nodes(graph.node):
        if node.op_type == "MatMul" and not node.domain:
            weight, transposed = _stored(node.input[1], types, makers)
            if weight:
                node.op_type, node.domain, node.input[1], found = OPERATOR, DOMAIN, weight, True
                node.attribute.add(name="transposed", type=INT, i=int(transposed))
    if found:
        import_our_domain(model)
        _remove_unread(graph, makers)


def _stored(name: str, types: Mapping[str, int], makers: Mapping[str, onnx.NodeProto]) -> tuple[str, bool]:
    """The constant that a matrix of float32 is made from, and whether it is transposed; empty where there is none."""
    transposed = widened = False
    while name in makers:
        maker = makers[name]
        if maker.op_type == "Transpose":  # of two axes, as the constant is
            transposed ^= [*maker.attribute[0].ints] != [0, 1] if maker.attribute else True
        elif maker.attribute[0].i == FLOAT:
            widened = True
        else:
            return "", False
        name = maker.input[0]
    fits = types.get(name) in ((FLOAT, FLOAT16, BFLOAT16) if widened else (FLOAT,))
    return (name, transposed) if fits else ("", False)


def _remove_unread(graph: onnx.GraphProto, nodes: Mapping[str, onnx.NodeProto]) -> None:
    """Remove those of `nodes`, by their outputs, that nothing reads any more."""
    while True:
        read = {name for node in all_nodes(graph.node) for name in node.input} | {each.name for each in graph.output}
        unread = [node for node in graph.node if node.output[0] in nodes and node.output[0] not in read]
        if not unread:
            return
        for node in unread:
            graph.node.remove(node)
