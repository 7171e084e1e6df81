"""IntegerSoftmax: replace attentions that do not fit IntAttention by IntMatMul, IntSoftmax and IntMatMul."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant, remove_if_dead
from intaglio.graph_passes.integer.emit import emit, share
from intaglio.graph_passes.integer.scores import scores_of
from intaglio.graph_passes.quantize_dequantize.quantize_activations import scalar_factor
from intaglio.graph_passes.quantize_dequantize.quantized import LAYOUT, Quantizer, Writer, quantized, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region


@dataclass(frozen=True)
class IntegerSoftmax(Pass):
    """Replace matrix products of two activations, and Softmax, by one operator each.

    1. Layout nodes and products with a scalar are moved before the DequantizeLinear, so they work on integers.
    2. DQ(a)·DQ(b) → factor → mask → Softmax → Q becomes IntMatMul (exact scores) and IntSoftmax.
    3. DQ(a)·DQ(b) → Q becomes IntMatMul.
    4. Left, with the reason: inputs or outputs that are not in Q/DQ form.
    """

    name: ClassVar[str] = "integer_softmax"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in model_region(model):
            _sink(writer, node)
        for node in model_region(model):
            if node.op_type == "Softmax" and node.domain == "" and node.graph is not None:
                counts.note("softmax", _softmax(writer, node))
        for node in model_region(model):
            if node.op_type == "MatMul" and node.graph is not None and constant(_integers(node.inputs[1])) is None:
                counts.note("matmul", _matmul(writer, node))


def _integers(value: ir.Value | None) -> ir.Value | None:
    found = quantized(value)
    return None if found is None else found.integers


def _sink(writer: Writer, node: ir.Node) -> None:
    """Apply a layout node to the integers instead of the dequantised values."""
    factor = scalar_factor(node) if node.op_type in ("Mul", "Div") else None
    if node.domain != "" or (node.op_type not in LAYOUT and factor is None):
        return
    source = next((value for value in node.inputs if value is not None and constant(value) is None), None)
    found = quantized(source)
    old = node.outputs[0]
    if found is None or found.per_tensor is None or old.is_graph_output():
        return
    integers = found.integers
    if factor is None:
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        inputs = [integers, *node.inputs[1:]]
        integers = writer.node(node, node.op_type, inputs, f"{old.name}_integers", **attributes).outputs[0]
        integers.type, integers.shape = found.integers.type, old.shape
    scale = writer.constant(np.asarray(found.per_tensor * (factor or 1.0), np.float32), f"{old.name}.scale")
    back = writer.node(node, "DequantizeLinear", [integers, scale], f"{old.name}_back").outputs[0]
    back.type, back.shape = old.type, old.shape
    back.meta.update(old.meta)
    old.replace_all_uses_with(back)
    remove_if_dead(node)


def _factors(product: ir.Node) -> tuple[list[ir.Value], float] | None:
    """Return the 8-bit integers that a MatMul multiplies, and the real value of one unit of their product."""
    a, b = (quantized(value) for value in product.inputs)
    if a is None or b is None or a.per_tensor is None or b.per_tensor is None or {a.bits, b.bits} != {8}:
        return None
    return [a.integers, b.integers], a.per_tensor * b.per_tensor


def _softmax(writer: Writer, node: ir.Node) -> str | None:
    """Insert IntMatMul and IntSoftmax, or return the reason why not."""
    scores, consumers = scores_of(node, writer), quantizers(node.outputs[0])
    if isinstance(scores, str):
        return scores
    if isinstance(consumers, str):
        return consumers
    if scores.bias is not None:
        return f"{node.outputs[0].name}: its scores have a bias of positions"
    factors = _factors(scores.product)
    if factors is None:
        return f"{scores.product.outputs[0].name}: not a product of 8-bit integers"
    inputs, unit = factors
    product = writer.integer(scores.product, "IntMatMul", inputs, scores.product.outputs[0], bits=32).outputs[0]
    scale = scores.factor * unit
    out_scale = float(np.float32(max(1 / 127, *(consumer.scale.max() for consumer in consumers))))
    made = writer.integer(
        node, "IntSoftmax", [product, scores.keep], node.outputs[0], scale=scale, out_scale=out_scale
    ).outputs[0]
    share(writer, node, made, Quantizer(node, np.asarray(out_scale, np.float64), 8), consumers, node.outputs[0])
    return None


def _matmul(writer: Writer, node: ir.Node) -> str | None:
    """Insert an IntMatMul, or return the reason why not."""
    factors = _factors(node)
    if factors is None:
        return f"{node.outputs[0].name}: not a product of 8-bit integers"
    inputs, unit = factors
    consumers = quantizers(node.outputs[0])
    if isinstance(consumers, str):
        return consumers
    emit(writer, node, "IntMatMul", inputs, node.outputs[0], np.asarray(unit), consumers)
    return None
