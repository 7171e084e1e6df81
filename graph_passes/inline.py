"""Inline: replace our operators by standard ONNX operators, so that any ONNX runtime can run the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.plugins.float_body import FloatBody
from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.inlining import inline

if TYPE_CHECKING:
    import onnx_ir as ir

BODIES = {"integer": FunctionBody, "float": FloatBody}


@dataclass(frozen=True)
class Inline(Pass):
    """Replace every operator of ours by its function body; a graph without them does not change.

    `arithmetic` of the bodies: "integer" is bit-identical to the operators, with MatMulInteger and 64-bit arithmetic;
    "float" is approximate, with float16 products and float32 arithmetic, for runtimes without integer arithmetic (see
    `plugins.float_body`). Raises `GraphError` for an operator that this version does not know.
    """

    name: ClassVar[str] = "inline"
    arithmetic: Literal["integer", "float"] = "integer"

    @property
    def effect(self) -> Effect:
        """The integer bodies are exact; the float ones compute in float16."""
        return Effect.EXACT if self.arithmetic == "integer" else Effect.FLOAT16

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        counts.rewritten |= inline(model, body=BODIES[self.arithmetic])
        if not counts.rewritten:
            counts.leave("the graph has only standard operators already")
