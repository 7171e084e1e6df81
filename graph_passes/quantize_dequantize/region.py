"""The part of a model that the integer passes rewrite: from its embedding tables to its last normalisation."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.graph_passes.front_end import STRUCTURE, features, front_end
from intaglio.graph_passes.graphs import constant, used_values
from intaglio.plugins import DOMAIN
from intaglio.plugins.group_matmul.minimums import completes_groups

NORMALIZATIONS = {("", "LayerNormalization"), ("", "RMSNormalization"), (DOMAIN, "IntLayerNorm")}


def model_region(model: ir.Model) -> list[ir.Node]:
    """Return the nodes, in the graph's order, that depend on embeddings and that a normalisation depends on.

    1. They begin with the Gathers from constant tables of two axes (words, positions, types), and what follows them;
       in a graph without such tables, such as for images, with its floating-point inputs; in one that computes the
       features of a waveform, or normalises pixels, after these.
    2. They end with the last normalisation; a pooler, a classifier or a language model's head comes after it. In a
       graph without normalisations they end with the outputs.

    Integer arithmetic on indices and masks is not included.
    """
    before, following = front_end(model), activations(model)
    normalized = any(map(is_normalization, model.graph))
    needed: set[ir.Value] = set() if normalized else set(model.graph.outputs)
    region = []
    for node in reversed(list(model.graph)):
        if is_normalization(node) or not needed.isdisjoint(node.outputs):
            needed.update(value for value in node.inputs if value is not None)
            if node not in before and not following.isdisjoint(node.outputs):
                region.append(node)
    return region[::-1]


def activations(model: ir.Model) -> set[ir.Value]:
    """Return the values with which `model_region` begins, and those that depend on them.

    Masks, positions, and what is computed from them alone are none.
    """
    first = features(model, front_end(model)) or set(filter(_is_float, model.graph.inputs))
    following = set() if any(map(is_embedding, model.graph)) else first
    for node in model.graph:
        follows = not following.isdisjoint(used_values(node))
        if is_embedding(node) or (follows and not _gives_structure(node)):
            following.update(node.outputs)
    return following


def is_embedding(node: ir.Node) -> bool:
    """Whether the node reads rows of a constant table, which is not a part of a quantised one."""
    if node.op_type != "Gather" or node.domain != "" or node.attributes.get_int("axis", 0) != 0:
        return False
    table = constant(node.inputs[0])
    kinds = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT8)
    whole = table is not None and not completes_groups(table.name)
    return table is not None and whole and len(table.shape) == 2 and table.dtype in kinds


def is_normalization(node: ir.Node) -> bool:
    """Whether the node normalises over channels."""
    return (node.domain, node.op_type) in NORMALIZATIONS


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _gives_structure(node: ir.Node) -> bool:
    """Whether the node's output depends only on shapes."""
    return node.domain == "" and node.op_type in STRUCTURE
