"""Replace our operators by their bodies, so that any ONNX runtime, and TensorRT-RTX, can run the graph."""

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
    """Replace our operators, all or those named, by their bodies; return the number of replaced nodes by operator.

    The model is changed in place; with all of them replaced, it needs only ONNX's standard operators. `body` is the
    class that writes them: a `FunctionBody` computes the operators' integers exactly, a `FloatBody` approximately, for
    runtimes without an integer matrix product. Raises `GraphError` with the node's name for an operator that this
    version does not know, and for invalid attributes and inputs.
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
    """Remove unused nodes and values, and merge equal constants."""
    RemoveUnusedNodesPass()(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    DeduplicateInitializersPass()(model)


def _name(node: ir.Node, body: list[ir.Node]) -> None:
    """Name nodes and values after the node that they replace, which keeps profiles and errors readable."""
    prefix = node.name or (node.outputs[0].name or node.op_type)
    for number, made in enumerate(body):
        made.name = f"{prefix}/{made.op_type}_{number}"
        for index, output in enumerate(made.outputs):
            output.name = f"{made.name}_{index}"
