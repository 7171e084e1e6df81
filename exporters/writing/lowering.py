"""Replace the operators of a traced program that ONNX lacks, without tracing it a second time where that is possible.

`torch.onnx.export` computes the shapes of a program three times: to capture it, to replace the operators that it cannot
translate, and to cast the inputs of operators to one dtype, which takes longer than all the rest. Of models without
operators that write to their inputs only casts and a few others are left to be replaced, which is done node by node
here; and only nodes that get a cast are computed again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.onnx._internal.exporter import _decomp, _fx_passes
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.onnx._internal.fx.passes import type_promotion

aten = torch.ops.aten
CASTS = (aten.to.dtype, aten.to.dtype_layout, aten.to.device)
SAME = {aten.__and__.Tensor: aten.bitwise_and.Tensor, aten.__or__.Tensor: aten.bitwise_or.Tensor}
ASSERTIONS = (aten._assert_scalar.default, aten._assert_tensor_metadata.default)  # the exporter removes them
_translations = functools.cache(ONNXRegistry.from_torchlib)


@contextmanager
def single_trace() -> Iterator[None]:
    """Inside, `torch.onnx.export` replaces operators by `lowered`, casts by `Promotion`, and reads its table once."""
    retraced = _fx_passes.decompose_with_registry

    def decompose(program: ExportedProgram, registry: ONNXRegistry) -> ExportedProgram:
        return program if lowered(program, registry) else retraced(program, registry)

    with (
        patch.object(_fx_passes, "decompose_with_registry", decompose),
        patch.object(type_promotion, "_TypePromotionInterpreter", Promotion),
        patch.object(ONNXRegistry, "from_torchlib", staticmethod(_translations)),
        torch.no_grad(),  # a region without gradients would be a graph within the graph
    ):
        yield


def lowered(program: ExportedProgram, registry: ONNXRegistry) -> bool:
    """Replace the operators of `program` that `registry` does not translate.

    False, and nothing is replaced, if there are others, or some that write to their inputs.
    """
    translated = set(_decomp.get_onnx_implemented_overloads(registry))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    known = {*translated, *CASTS, *SAME, *ASSERTIONS}
    if any(node.target not in known or _writes(node) for node in nodes):
        return False
    for node in nodes:
        if node.target in CASTS:
            _replace_cast(node)
        elif node.target in SAME:
            node.target = SAME[node.target]
    program.graph_module.recompile()
    return True


class Promotion(type_promotion._TypePromotionInterpreter):
    """Casts inputs to one dtype, and takes the value of a node that has one from the trace."""

    def run_node(self, n: Node) -> Any:
        """The value of node `n`, fake, once its inputs are cast."""
        if n.op != "call_function" or "val" not in n.meta:
            return super().run_node(n)
        with self._set_current_node(n):
            rule = type_promotion.get_type_promotion_rule(n, self.type_promotion_table)
            if rule is not None:
                self._maybe_promote_node(n, rule)
        return n.meta["val"]


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _replace_cast(node: Node) -> None:
    (source,) = node.all_input_nodes
    dtype = node.meta["val"].dtype
    is_output = any(user.op == "output" for user in node.users)
    if source.meta["val"].dtype == dtype and not is_output:  # outputs keep their names
        node.replace_all_uses_with(source)
        node.graph.erase_node(node)
    else:
        node.target, node.args, node.kwargs = aten._to_copy.default, (source,), {"dtype": dtype}
