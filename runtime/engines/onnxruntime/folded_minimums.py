"""Minimums of quantised weights in the product's own node, for the kernels of CPUs.

A file has x·wᵀ = GroupMatMul(x) - sums·minimumsᵀ, with the sums of x over each group (group_matmul/minimums.py):
standard operators, which every runtime has. They read four bytes for each group of a row where the kernel keeps one,
and take six nodes, a seventh of the time of a 4-bit K-quant's step.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from intaglio.plugins.group_matmul.minimums import MINIMUMS, ONES
from intaglio.plugins.registry import DOMAIN
from intaglio.runtime.engines.onnx_nodes import all_nodes

if TYPE_CHECKING:
    import onnx

PRODUCT = "GroupMatMul"


def fold_minimums(graph: onnx.GraphProto) -> None:
    """Replace each difference of a product and of what its minimums add up to by one node, also in inner graphs."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                fold_minimums(inner)
    made = {name: node for node in graph.node for name in node.output}
    read = Counter(name for node in all_nodes(graph.node) for name in node.input)
    read.update(value.name for value in graph.output)
    left: set[str] = set()  # values that may be read no more
    for difference in list(graph.node):
        found = _product(difference, made)
        if found is None:
            continue
        product, minimums = found
        beside = product.output[0]
        if read[beside] != 1:
            continue
        product.input.extend([""] * (5 - len(product.input)) + [minimums])
        product.output[0] = difference.output[0]
        left.update(difference.input)
        graph.node.remove(difference)
    _remove_unread(graph, left)


def _product(difference: onnx.NodeProto, made: dict[str, onnx.NodeProto]) -> tuple[onnx.NodeProto, str] | None:
    """The product that `difference` takes minimums from, and these; None if it is something else."""
    if difference.op_type != "Sub":
        return None
    product, below = (made.get(name) for name in difference.input)
    if product is None or (product.op_type, product.domain) != (PRODUCT, DOMAIN) or len(product.input) > 4:
        return None
    kinds = ["MatMul", "Squeeze", "MatMul", "Reshape"]
    found: list[onnx.NodeProto] = []
    while below is not None and len(found) < len(kinds) and below.op_type == kinds[len(found)]:
        found.append(below)
        below = made.get(below.input[0])
    if len(found) < len(kinds):
        return None
    minimums, ones, x = found[0].input[1], found[2].input[1], found[3].input[0]
    named = minimums.endswith(f".{MINIMUMS}") and ones.endswith(f".{ONES}")
    return (product, minimums) if named and x == product.input[0] else None


def _remove_unread(graph: onnx.GraphProto, left: set[str]) -> None:
    """Remove the nodes whose outputs, `left` by what is gone, are read no more, and then those before them."""
    while left:
        read = {name for node in all_nodes(graph.node) for name in node.input} | {value.name for value in graph.output}
        gone = [node for node in graph.node if node.output[0] in left and not read.intersection(node.output)]
        left = {name for node in gone for name in node.input}
        for node in gone:
            graph.node.remove(node)
