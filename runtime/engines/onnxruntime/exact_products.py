"""Products with compressed weights whose activations are not rounded to 16 bits, to check a graph by.

On some processors the kernels compute with activations in fixed point, of 16 bits where the node says so. That is a
choice of speed which the graph of a checkpoint with codes contains from the start, and its error, of 2^-16 in each
product, would hide an error of the graph itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins.registry import DOMAIN
from intaglio.runtime.engines.onnx_nodes import all_nodes

if TYPE_CHECKING:
    import onnx

ATTRIBUTE, EXACT = "activation_bits", 32  # 24 bits of the largest activation, which is as exact as float32


def keep_activations(model: onnx.ModelProto) -> None:
    """Let every product with compressed weights compute with unrounded activations."""
    for node in all_nodes(model.graph.node):
        for attribute in node.attribute:
            if node.domain == DOMAIN and attribute.name == ATTRIBUTE:
                attribute.i = EXACT
