"""Which part of an encoder has to be integer: from the embedding tables to the last normalisation, both included."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.errors import GraphError
from intaglio.graph_passes.graphs import constant
from intaglio.plugins import DOMAIN


def encoder_region(model: ir.Model) -> list[ir.Node]:
    """The nodes, in the graph's order, that compute with embeddings and that a normalisation depends on.

    1. They begin with the Gathers from constant tables of two axes (words, positions, types), and what follows them.
    2. They end with the last LayerNormalization (or IntLayerNorm); a pooler or classifier after it is the head.

    Integer arithmetic on indices and masks that goes on beside them is no part of it. Raises `GraphError` for a graph
    without a table or without a normalisation.
    """
    following: set[ir.Value] = set()
    for node in model.graph:
        follows = not following.isdisjoint(value for value in node.inputs if value is not None)
        if is_embedding(node) or (follows and not _gives_structure(node)):
            following.update(node.outputs)
    needed: set[ir.Value] = set()
    region = []
    for node in reversed(list(model.graph)):
        if is_normalization(node) or not needed.isdisjoint(node.outputs):
            needed.update(value for value in node.inputs if value is not None)
            if not following.isdisjoint(node.outputs):
                region.append(node)
    if not region:
        raise GraphError(
            "no embedding table that a LayerNormalization follows: expected an encoder. Run canonicalize before."
        )
    return region[::-1]


def is_embedding(node: ir.Node) -> bool:
    """Whether the node takes rows of a constant table."""
    if node.op_type != "Gather" or node.domain != "" or node.attributes.get_int("axis", 0) != 0:
        return False
    table = constant(node.inputs[0])
    kinds = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT8)
    return table is not None and len(table.shape) == 2 and table.dtype in kinds


def is_normalization(node: ir.Node) -> bool:
    """Whether the node normalises over channels."""
    return (node.domain, node.op_type) in {("", "LayerNormalization"), (DOMAIN, "IntLayerNorm")}


def _gives_structure(node: ir.Node) -> bool:
    """Whether the node tells about shapes only, so that nothing of the numbers goes through it."""
    return node.domain == "" and node.op_type in ("Shape", "Size")
