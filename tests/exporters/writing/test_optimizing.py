"""Rules that are tried where they can match give the graph that rules tried everywhere give."""

from __future__ import annotations

from unittest.mock import patch

import onnx_ir as ir
import torch
from onnxscript import optimizer
from onnxscript.rewriter import RewriteRule
from torch.export import Dim

from intaglio.exporters.writing import optimizing
from intaglio.exporters.writing.traced_graph import quiet


class Simplified(torch.nn.Module):
    """Operators that several rules simplify."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        same = x.transpose(1, 2).transpose(1, 2) * 1.0 + 0.0
        limited = torch.relu(same).clamp(min=0.0).clamp(max=1.0)
        return limited, x.reshape(x.shape[0], 2, -1).reshape(x.shape[0], -1)


def traced() -> ir.Model:
    with quiet():
        program = torch.onnx.export(
            Simplified().eval(),
            (torch.ones(2, 4, 6),),
            dynamo=True,
            dynamic_shapes=({0: Dim("batch")},),
            optimize=False,
            verbose=False,
        )
    assert program is not None
    return program.model


def text(model: ir.Model) -> str:
    return "\n".join(f"{node.op_type} {node.inputs} {dict(node.attributes)} {node.outputs}" for node in model.graph)


def test_graph_is_the_one_that_all_attempts_give() -> None:
    every = traced()
    before = [node.op_type for node in every.graph]
    with patch.object(RewriteRule, "match", autospec=True, side_effect=RewriteRule.match) as attempts:
        optimizer.optimize(every, output_size_limit=optimizing.FOLDED)
    tried_everywhere = attempts.call_count
    few = traced()
    with patch.object(RewriteRule, "match", autospec=True, side_effect=RewriteRule.match) as attempts:
        optimizing.optimize(few)
    assert text(few) == text(every)
    assert len(few.graph) < len(before) - 4
    assert attempts.call_count < tried_everywhere / 5


def test_optimizer_tries_everything_again_afterwards() -> None:
    before = RewriteRule.try_rewrite
    optimizing.optimize(traced())
    assert RewriteRule.try_rewrite is before
