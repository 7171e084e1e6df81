"""Products with constant float weights by our kernel, which reads a packed weight once for a few rows of x.

ONNX Runtime's reaches two thirds of the memory's bandwidth with the rows of a decode step, and has none for weights of
16 bits beside activations of 32: it widens them when it opens the graph, and so reads twice the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from intaglio.plugins.registry import DOMAIN
from intaglio.runtime.engines.onnx_nodes import all_nodes, import_our_domain

if TYPE_CHECKING:
    import onnx

OPERATOR = "PackedMatMul"
FLOAT, FLOAT16, BFLOAT16, INT = 1, 10, 16, 2  # of onnx.TensorProto, the last of AttributeProto; not loaded here


def pack_products(model: onnx.ModelProto) -> None:
    """Replace each MatMul of float32 by a constant matrix, also one that is of 16 bits or transposed in the file.

    The nodes that widen or transpose it are removed where nothing else reads them.
    """
    matrices, found = _Matrices(model.graph), False
    for node in all_nodes(model.graph.node):
        if weight := matrices.factor(node):
            node.op_type, node.domain, node.input[1], found = OPERATOR, DOMAIN, weight.name, True
            node.attribute.add(name="transposed", type=INT, i=int(weight.transposed))
    if found:
        import_our_domain(model)
        _remove_unread(model.graph, matrices.makers)


def has_narrow_weights(graph: onnx.GraphProto) -> bool:
    """Whether a weight of 16 bits is widened to be multiplied in float32."""
    matrices = _Matrices(graph)
    return any(weight.narrow for node in all_nodes(graph.node) if (weight := matrices.factor(node)))


class _Stored(NamedTuple):
    """A constant that a matrix of float32 is made from: its name, whether it is transposed, and of 16 bits."""

    name: str
    transposed: bool
    narrow: bool


class _Matrices:
    """The constant matrices of a graph, and the nodes that others are made from them by."""

    def __init__(self, graph: onnx.GraphProto):
        self._types = {each.name: each.data_type for each in graph.initializer if len(each.dims) == 2}
        for value in graph.input:  # another weight may be given for it
            self._types.pop(value.name, None)
        made = (node for node in graph.node if node.op_type in ("Cast", "Transpose") and not node.domain)
        self.makers = {node.output[0]: node for node in made}

    def factor(self, node: onnx.NodeProto) -> _Stored | None:
        """The constant that a MatMul of float32 multiplies by; None for other nodes and other factors."""
        if node.op_type != "MatMul" or node.domain:
            return None
        name, transposed, widened = node.input[1], False, False
        while name in self.makers:
            maker = self.makers[name]
            if maker.op_type == "Transpose":  # of two axes, as the constant is
                transposed ^= [*maker.attribute[0].ints] != [0, 1] if maker.attribute else True
            elif any(each.name == "to" and each.i == FLOAT for each in maker.attribute):
                widened = True
            else:
                return None
            name = maker.input[0]
        narrow = self._types.get(name) in (FLOAT16, BFLOAT16)
        fits = (narrow and widened) or self._types.get(name) == FLOAT
        return _Stored(name, transposed, narrow) if fits else None


def _remove_unread(graph: onnx.GraphProto, nodes: Mapping[str, onnx.NodeProto]) -> None:
    """Remove those of `nodes`, by their outputs, that nothing reads any more."""
    while True:
        read = {name for node in all_nodes(graph.node) for name in node.input} | {each.name for each in graph.output}
        unread = [node for node in graph.node if node.output[0] in nodes and node.output[0] not in read]
        if not unread:
            return
        for node in unread:
            graph.node.remove(node)
