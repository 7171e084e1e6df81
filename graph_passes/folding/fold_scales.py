"""FoldScales: constant scales and biases become part of the weights of neighbouring linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.algebra import scalar
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.folding.affine_layers import AffineLayer, AffineLayers, Vector, per_channel, users
from intaglio.graph_passes.graphs import Names, all_nodes, constant, infer_shapes, rank, remove_if_dead
from intaglio.graph_passes.quantize_dequantize.quantized import LAYOUT
from intaglio.plugins.nodes import take_over

SCALES, SHIFTS = ("Mul", "Div"), ("Add", "Sub")


@dataclass(frozen=True)
class FoldScales(Pass):
    """Remove, in the graph and in the bodies of If and Loop:

    1. γ·x and x/γ, with a constant γ, one number or one per channel, where all users of the product are linear layers
       (MatMul, Gemm, Conv with constant weights): W' = diag(γ)·W in each of them. So a scale between a normalisation
       and its layers goes, also where the normalisation has other users, such as a residual connection.
    2. x + β and x - β under the same condition: b' = b + β·W. A layer without bias gets one (a MatMul an Add).
    3. s·y and y/s, where y is the output of a linear layer that nothing else uses: W' = W·diag(s), b' = s·b. If s is
       one number, Reshape, Transpose, Squeeze, Unsqueeze and Identity may be in between, as behind the queries of an
       attention.

    This merges the learned scaling layers of a Squeezeformer into the modules behind them (thesis, section 5.2), the
    scaling of queries, the half steps of a Conformer, and the scaling of an encoder's input. Each weight is computed in
    float64 and rounded once; one with other users is copied.

    Left, with a reason: a scale or shift that is an output of the graph, or that has a user other than a linear layer
    with a constant weight of its own, not an embedding table; a shift before a Conv that pads with zeros; layers in
    float16; NaN and infinities. Left without one: the bias of a linear layer, and constants that are not one number, or
    one per channel.
    """

    name: ClassVar[str] = "fold_scales"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        infer_shapes(model)
        layers, names = AffineLayers(model), Names(model)
        left: dict[str, list[str]] = {}
        for node in reversed(all_nodes(model)):  # of a scale and a shift, the later one first
            x = _operand(node)
            if x is None or layers.returning(node.outputs[0]) is not None:
                continue
            folded = node.op_type in SCALES and _fold_back(node, x, layers, names)
            reason = None if folded else _fold_forward(node, x, layers)
            if reason is None:
                counts.add("scales" if node.op_type in SCALES else "shifts")
            else:
                left.setdefault(f"{node.op_type} {reason}", []).append(str(node.name or node.outputs[0].name))
        for reason, found in left.items():
            counts.leave(f"{reason}: {found[-1]}" + (f" and {len(found) - 1} more" if len(found) > 1 else ""))
        if copied := layers.write():
            counts.add("copied weights", copied)
        if not counts.rewritten and not counts.reasons:
            counts.leave("no product or sum with constants, besides the biases of linear layers")


def _operand(node: ir.Node) -> ir.Value | None:
    """The activation that `node` scales or shifts by floating-point constants; None if it does neither."""
    if node.domain != "" or node.op_type not in (*SCALES, *SHIFTS):
        return None
    first, second = node.inputs
    if first is None or second is None:
        return None
    if constant(first) is not None and node.op_type in ("Mul", "Add"):
        first, second = second, first
    tensor = constant(second)
    if tensor is None or constant(first) is not None or not tensor.dtype.is_floating_point():
        return None
    return first if len(tensor.shape) <= max(rank(first) or 0, 1) else None  # more axes would change the shape


def _numbers(node: ir.Node, x: ir.Value, axis: int, channels: int) -> Vector | str:
    """γ or β [channels] of `node`, relative to `x` with the channels along `axis`; or the reason why it has none."""
    tensor = next(tensor for value in node.inputs if (tensor := constant(value)) is not None)
    found = per_channel(tensor, x, axis, channels)
    if tensor.size == 1:  # with the rank of x behind a Reshape
        found = np.full(channels, tensor.numpy().astype(np.float64).reshape(-1)[0])
    if found is None:
        return f"by a constant that is neither one number nor one for each of {channels} channels"
    with np.errstate(divide="ignore"):
        found = 1 / found if node.op_type == "Div" else -found if node.op_type == "Sub" else found
    return found if np.isfinite(found).all() else "by NaN, infinity, or divided by 0"


def _fold_back(node: ir.Node, x: ir.Value, layers: AffineLayers, names: Names) -> bool:
    """Fold a scale into the layer that computes `x`; return whether that was possible."""
    one = scalar(next(value for value in node.inputs if value is not x)) is not None
    passed = [x]  # from `x` up to the layer's output
    while (layer := layers.returning(passed[-1])) is None:
        producer = passed[-1].producer()
        source = producer.inputs[0] if one and producer is not None and _is_layout(producer) else None
        if source is None:
            return False
        passed.append(source)
    numbers = _numbers(node, layer.output, layer.axis, layer.outputs)
    shared = any(value.is_graph_output() or len(users(value)) != 1 for value in passed)
    if shared or isinstance(numbers, str) or layer.refuses_bias() or layer.node.graph is not node.graph:
        return False
    layer.scale_outputs(numbers)
    for value in passed[1:]:
        value.name = names.new(f"{value.name}_scaled")
    take_over(node.outputs[0], x)
    remove_if_dead(node)
    return True


def _is_layout(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in LAYOUT


def _fold_forward(node: ir.Node, x: ir.Value, layers: AffineLayers) -> str | None:
    """Fold a scale or a shift into all layers that use it; the reason if that is impossible."""
    output = node.outputs[0]
    if output.is_graph_output():
        return "that is an output of the graph"
    found: list[tuple[AffineLayer, Vector]] = []
    for user in users(output):
        layer = layers.at(user)
        if isinstance(layer, str):
            return f"used by {layer}"
        if user.inputs[0] is not output or list(user.inputs).count(output) != 1:
            return f"used as the bias of a {user.op_type}"
        numbers = _numbers(node, x, layer.axis, layer.inputs)
        if isinstance(numbers, str):
            return numbers
        if node.op_type in SHIFTS and (refused := layer.refuses_shifted_inputs()):
            return f"used by {refused}"
        found.append((layer, numbers))
    for layer, numbers in found:
        if node.op_type in SCALES:
            layer.scale_inputs(numbers)
        else:
            layer.shift_inputs(numbers)
    output.replace_all_uses_with(x)
    remove_if_dead(node)
    return None
