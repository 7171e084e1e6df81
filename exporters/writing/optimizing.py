"""Fold constants and simplify a traced graph, with onnxscript's optimizer."""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import patch

import onnx_ir as ir
from onnxscript import optimizer
from onnxscript.rewriter import RewriteRule

FOLDED = 1024  # elements of a constant; larger ones are folded only if used once, so tied weights stay shared


def optimize(model: ir.Model) -> None:
    """Optimize `model` in place.

    The optimizer tries each of its rules at each node. Here a rule is tried only at the operator that its pattern ends
    with, which gives the same graph and leaves out nearly all attempts.
    """
    attempt = RewriteRule.try_rewrite

    def try_rewrite(rule: RewriteRule, model: ir.Model, graph: Any, node: ir.Node, **options: Any) -> Any:
        return attempt(rule, model, graph, node, **options) if _last_operator(rule) in (None, node.op_type) else None

    with patch.object(RewriteRule, "try_rewrite", try_rewrite):
        optimizer.optimize(model, output_size_limit=FOLDED)


@functools.cache
def _last_operator(rule: RewriteRule) -> str | None:
    """The type of the operator that the pattern of `rule` ends with, None if it may be of several."""
    identifier = rule._target_pattern.output_nodes[0].op_identifier()
    return identifier and identifier[1]
