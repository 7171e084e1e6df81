"""FoldBatchNorm: batch normalisations become part of the weights of the layers before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.folding.affine_layers import AffineLayers, Vector, users
from intaglio.graph_passes.graphs import all_nodes, constant, remove_if_dead
from intaglio.plugins.nodes import take_over

EPSILON = 1e-5  # the standard's default


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Remove, in the graph and in the bodies of If and Loop:

    1. BatchNormalization of the output of a Conv or Gemm with constant weights. With s = scale / √(variance + epsilon):
       W' = s·W for each output channel, b' = s·(b - mean) + bias; a Conv without bias gets one.

    Each weight is computed in float64 and rounded once; one with other users is copied. The result keeps the name of
    the normalisation's.

    Left, with a reason: a normalisation in training mode, of another value (of a MatMul too, whose channels are on
    another axis), of an output that has other users, with scales or statistics that are not constants, or whose
    variance + epsilon is not above 0; layers in float16.
    """

    name: ClassVar[str] = "fold_batch_norm"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        layers = AffineLayers(model)
        found = [node for node in all_nodes(model) if node.op_type == "BatchNormalization" and node.domain == ""]
        for node in found:
            reason = _fold(node, layers)
            if reason is None:
                counts.add("batch normalisations")
            else:
                counts.leave(f"{node.name or node.outputs[0].name}: {reason}")
        if copied := layers.write():
            counts.add("copied weights", copied)
        if not found:
            counts.leave("no BatchNormalization in the graph")


def _fold(node: ir.Node, layers: AffineLayers) -> str | None:
    """Fold a normalisation; the reason if that is impossible."""
    x, output = node.inputs[0], node.outputs[0]
    assert x is not None
    if node.attributes.get_int("training_mode", 0):
        return "it is in training mode"
    layer = layers.returning(x)
    if layer is None or layer.node.op_type == "MatMul":
        producer = x.producer()
        return f"it follows {'an input' if producer is None else producer.op_type}, not a Conv or Gemm with constants"
    if x.is_graph_output() or len(users(x)) != 1:
        return f"{x.name} has other users"
    affine = _factors(node)
    if isinstance(affine, str):
        return affine
    if (refused := layer.refuses_bias()) is not None:
        return f"it follows {refused}"
    factors, offsets = affine
    layer.scale_outputs(factors)
    layer.shift_outputs(offsets)
    take_over(output, x)
    remove_if_dead(node)
    return None


def _factors(node: ir.Node) -> tuple[Vector, Vector] | str:
    """(s, t) of the normalisation s·x + t, both [channels]; or the reason why they are not known."""
    tensors = [constant(value) for value in node.inputs[1:5]]
    if any(tensor is None for tensor in tensors):
        return "its scales or statistics are not constants"
    scale, bias, mean, variance = (tensor.numpy().astype(np.float64) for tensor in tensors if tensor is not None)
    spread = variance + node.attributes.get_float("epsilon", EPSILON)
    if not (spread > 0).all():
        return "its variance + epsilon is not above 0"
    factors = scale / np.sqrt(spread)
    offsets = bias - mean * factors
    finite = np.isfinite(factors).all() and np.isfinite(offsets).all()
    return (factors, offsets) if finite else "its scales or statistics are NaN or infinite"
