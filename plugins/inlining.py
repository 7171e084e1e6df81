"""Replaces our operators by their bodies, so that any ONNX runtime can take the graph, and TensorRT-RTX too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

import onnx_ir as ir
from onnx_ir.passes.common import (
    DeduplicateInitializersPass,
    LiftConstantsToInitializersPass,
    RemoveUnusedNodesPass,
)

from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.nodes import attributes, check, naming, operator_of
from intaglio.plugins.registry import DOMAIN


def inline(
    model: ir.Model, operators: Container[str] | None = None, body: type[FunctionBody] = FunctionBody
) -> Counter[str]:
    """Put the bodies of our operators, all or those named, in their places; the number of nodes replaced, by operator.

    The model is changed in place; with all of them replaced, it needs none but ONNX's standard operators. `body`
    says how they are written: a `FunctionBody` gives the operators' integers exactly, a `FloatBody` nearly, for
    runtimes that have no integer matrix product. Raises `GraphError` with the node's name for an operator that this
    version does not know, and for attributes and inputs that it does not take.
    """
    replaced: Counter[str] = Counter()
    for graph in model.graphs():
        for node in [node for node in graph if node.domain == DOMAIN]:
            if operators is None or node.op_type in operators:
                with naming(node):
                    _replace(node, body)
                replaced[node.op_type] += 1
    if replaced:
        _clean(model)
    if not any(node.domain == DOMAIN for graph in model.graphs() for node in graph):
        model.opset_imports.pop(DOMAIN, None)
    return replaced


def _replace(node: ir.Node, body_type: type[FunctionBody]) -> None:
    graph = node.graph
    assert graph is not None
    operator = operator_of(node)
    inputs, complete = operator.padded(node.inputs), operator.complete(attributes(node))
    check(operator, inputs, complete, node.outputs)
    first = inputs[0]
    body = body_type(len(first.shape) if first is not None and first.shape is not None else None)
    results = operator.body(body, inputs, complete)
    _name(node, body.nodes)
    graph.insert_before(node, body.nodes)
    for old, new in zip(node.outputs, results, strict=False):
        new.name, new.type, new.shape = old.name, old.type or new.type, old.shape
        new.metadata_props.update(old.metadata_props)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name = None
    graph.remove(node, safe=True)


def _clean(model: ir.Model) -> None:
    """Remove what nothing uses any more, and let equal constants be one initializer."""
    RemoveUnusedNodesPass()(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    DeduplicateInitializersPass()(model)


def _name(node: ir.Node, body: list[ir.Node]) -> None:
    """Name nodes and values after the node that they stand for, which keeps profiles and errors readable."""
    prefix = node.name or (node.outputs[0].name or node.op_type)
    for number, made in enumerate(body):
        made.name = f"{prefix}/{made.op_type}_{number}"
        for index, output in enumerate(made.outputs):
            output.name = f"{made.name}_{index}"
