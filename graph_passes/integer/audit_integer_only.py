"""AuditIntegerOnly: verify that there is no floating-point tensor between the embedding and the head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.integer.check_encoder import encoder_region, refuse
from intaglio.graph_passes.quantize_dequantize.region import is_normalization


@dataclass(frozen=True)
class AuditIntegerOnly(Pass):
    """Check the dtype of every tensor that the encoder computes; rewrite nothing.

    1. The encoder is the part from the embedding tables to the last normalisation; the floating-point head begins with
       a DequantizeLinear after it.
    2. Raises `GraphError` with the names of nodes whose outputs are floating-point or of unknown dtype (not the
       DequantizeLinear before such a node); with `allow_float` they are named in the counts instead.
    3. Raises `GraphError` for a graph that is not an encoder, see `encoder_region`.
    """

    name: ClassVar[str] = "audit_integer_only"
    effect: ClassVar[Effect] = Effect.EXACT
    allow_float: bool = False

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        """Check `model`."""
        region = encoder_region(model)
        found = [node for node in region if _is_float(node)]
        normalizations = sum(is_normalization(node) for node in region)
        counts.rewritten = {
            "integer nodes": len(region) - len(found),
            "floating-point nodes": len(found),
            "normalisations": normalizations,
        }
        culprits = [node for node in found if node.op_type != "DequantizeLinear"] or found
        for node in culprits:
            counts.leave(f"{node.op_type} {node.name or node.outputs[0].name} computes in floating point")
        if found and not self.allow_float:
            refuse(culprits)


def _is_float(node: ir.Node) -> bool:
    known = [value.dtype for value in node.outputs if value.uses()]
    return any(dtype is None or not (dtype.is_integer() or dtype == ir.DataType.BOOL) for dtype in known)
