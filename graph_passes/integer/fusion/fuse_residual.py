"""FuseResidual: fuse residual sums into the IntLayerNorm that uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import remove_if_dead
from intaglio.plugins import DOMAIN
from intaglio.plugins.nodes import lengths

FACTORS = 2  # the first of IntAdd's inputs that are factors
RESIDUAL = 5  # the first of IntLayerNorm's inputs that a residual needs


@dataclass(frozen=True)
class FuseResidual(Pass):
    """IntAdd → IntLayerNorm becomes one IntLayerNorm with a residual, which is bit-identical.

    1. The sum has one factor per term, and the normalisation is its only user; both terms have the same shape, and one
       of them is int32.
    2. Left, with the reason: all other sums that are inputs of an IntLayerNorm.
    """

    name: ClassVar[str] = "fuse_residual"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        for node in list(model.graph):
            if (node.domain, node.op_type) != (DOMAIN, "IntLayerNorm"):
                continue
            x = node.inputs[0]
            total = None if x is None else x.producer()
            if total is None or (total.domain, total.op_type) != (DOMAIN, "IntAdd"):
                continue
            if reason := _obstacle(node, total):
                counts.leave(f"{total.outputs[0].name}: {reason}")
            else:
                _fuse(node, total)
                counts.add("residual")


def _obstacle(node: ir.Node, total: ir.Node) -> str | None:
    """Return the reason why this sum cannot be fused."""
    result = total.outputs[0]
    shapes = [None if term is None else lengths(term) for term in total.inputs[:FACTORS]]
    if len(node.inputs) > RESIDUAL:
        return "its IntLayerNorm has a residual already"
    if len(result.uses()) > 1 or result.is_graph_output():
        return "it has other users than an IntLayerNorm"
    if any(factor is None or factor.shape != (1,) for factor in total.inputs[FACTORS:]):
        return "its factors are per channel"
    if shapes[0] is None or shapes[0] != shapes[1] or None in shapes[0]:
        return f"its terms have shapes {shapes[0]} and {shapes[1]}, expected one shape"
    if all(term is None or term.dtype != ir.DataType.INT32 for term in total.inputs[:FACTORS]):
        return "both of its terms are int8"
    return None


def _fuse(node: ir.Node, total: ir.Node) -> None:
    x, residual, x_multiplier, residual_multiplier, shift = total.inputs
    if x is not None and x.dtype != ir.DataType.INT32:
        x, residual, x_multiplier, residual_multiplier = residual, x, residual_multiplier, x_multiplier
    node.resize_inputs(RESIDUAL + 4)
    node.replace_input_with(0, x)
    for index, value in enumerate((residual, x_multiplier, residual_multiplier, shift), RESIDUAL):
        node.replace_input_with(index, value)
    remove_if_dead(total)
