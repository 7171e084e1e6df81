"""Canonicalize: replace formulas made of many nodes by the standard operator that computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import Names, add_initializer, all_nodes, infer_shapes, opset, replace_value
from intaglio.graph_passes.rewrites.gelu import GELU
from intaglio.graph_passes.rewrites.layer_norm import LAYER_NORM
from intaglio.graph_passes.rewrites.rewrite import Match, NewConstant, Rewrite
from intaglio.graph_passes.rewrites.softmax import SOFTMAX

REWRITES = [GELU, LAYER_NORM, SOFTMAX]


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Replace, in the graph and in the bodies of If and Loop:

    1. x/2 · (1 + erf(x/√2)) and its tanh approximation by Gelu,
    2. (x - mean) / √(variance + epsilon) · weight + bias over the last axis by LayerNormalization,
    3. exp(x) / sum(exp(x)) by Softmax,

    in any order and association of the arithmetic. The result keeps its name. Left, with a reason: constants that
    differ from the formula's by more than the rounding of their dtype, other axes, weights that are not 1-D.
    Intermediates with other uses stay; the bodies of the model's functions are not searched.
    """

    name: ClassVar[str] = "canonicalize"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        infer_shapes(model)
        names = Names(model)
        for rewrite in REWRITES:
            _apply(rewrite, model, names, counts)


def _apply(rewrite: Rewrite, model: ir.Model, names: Names, counts: Counts) -> None:
    kinds = " or ".join(rewrite.anchors)
    anchors = [node for node in all_nodes(model) if node.op_type in rewrite.anchors and node.domain == ""]
    if not anchors:
        counts.leave(f"{rewrite.name}: no {kinds} node in the graph")
        return
    if opset(model) < rewrite.opset:
        counts.leave(f"{rewrite.name}: opset {opset(model)}, its operator needs {rewrite.opset}; run raise_opset first")
        return
    reasons: list[str] = []
    for node in anchors:
        while node.graph is not None:  # several formulas can share one anchor
            found = rewrite.find(node)
            reasons += found.reasons
            if found.match is None:
                break
            _replace(found.match, model, names)
            counts.add(rewrite.name)
    if not reasons and rewrite.name not in counts.rewritten:
        reasons = [f"{len(anchors)} {kinds} nodes, none of them part of the formula"]
    for reason in reasons:
        counts.leave(f"{rewrite.name}: {reason}")


def _replace(match: Match, model: ir.Model, names: Names) -> None:
    inputs = [
        add_initializer(model, names.new(value.name), value.array) if isinstance(value, NewConstant) else value
        for value in match.inputs
    ]
    replace_value(match.output, match.op_type, inputs, match.attributes)
