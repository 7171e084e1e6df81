"""The nodes of an ONNX message, and the operators that it may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from intaglio.plugins.registry import DOMAIN, VERSION

if TYPE_CHECKING:
    import onnx


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes with those of the graphs in their attributes, such as the branches of an If."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from all_nodes(graph.node)


def import_our_domain(model: onnx.ModelProto) -> None:
    """Let the model have nodes of our domain."""
    if DOMAIN not in {opset.domain for opset in model.opset_import}:
        opset = model.opset_import.add()
        opset.domain, opset.version = DOMAIN, VERSION
