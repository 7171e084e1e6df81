"""IntegerAdd: replace sums of two activations (residuals, embeddings) by IntAdd."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import remove_if_dead
from intaglio.graph_passes.integer.emit import share
from intaglio.graph_passes.quantize_dequantize.quantized import Quantized, Quantizer, Writer, quantized, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region


@dataclass(frozen=True)
class IntegerAdd(Pass):
    """Add(DQ(x), DQ(y)) → Q becomes IntAdd.

    1. x and y have one scale or one per channel, and 8 or 16 bits; they are broadcast as before.
    2. A sum of a residual stream, which is not rounded, becomes Add of int32: its terms have scales that are powers of
       two apart.
    3. Left, with the reason: inputs or outputs that are not in Q/DQ form.
    """

    name: ClassVar[str] = "integer_add"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in model_region(model):
            if node.op_type != "Add" or node.domain != "" or node.graph is None:
                continue
            terms = [quantized(value) for value in node.inputs]
            consumers = quantizers(node.outputs[0])
            if terms[0] is None or terms[1] is None:
                counts.leave(f"{node.outputs[0].name}: not both of its inputs are integers")
            elif isinstance(consumers, str):
                counts.note("exact add", None if _add_exactly(writer, node, terms[0], terms[1]) else consumers)
            else:
                _replace(writer, node, terms[0], terms[1], consumers)
                counts.add("add")


def _replace(writer: Writer, node: ir.Node, x: Quantized, y: Quantized, consumers: list[Quantizer]) -> None:
    consumers = sorted(consumers, key=lambda consumer: consumer.bits, reverse=True)
    first, like = consumers[0], node.outputs[0]
    factors = multipliers(x.scale / first.scale, y.scale / first.scale)
    names = ("x_multiplier", "y_multiplier", "shift")
    constants = [writer.constant(array, f"{like.name}.{name}") for name, array in zip(names, factors, strict=True)]
    terms = [each.integers if each.bits == 8 else writer.int32(each.integers, node) for each in (x, y)]
    made = writer.integer(node, "IntAdd", [*terms, *constants], like, bits=first.bits)
    share(writer, node, made.outputs[0], first, consumers, like)


def _add_exactly(writer: Writer, node: ir.Node, *terms: Quantized) -> bool:
    """Replace the sum by one of int32 where the terms' scales are multiples of the smallest by powers of two."""
    unit = min(float(term.scale.min()) for term in terms)
    multiples = [term.scale / unit for term in terms]
    if any((np.frexp(multiple)[0] != 0.5).any() or multiple.max() > 2**15 for multiple in multiples):
        return False
    like, integers = node.outputs[0], []
    for term, multiple in zip(terms, multiples, strict=True):
        value = writer.int32(term.integers, node)
        if multiple.max() > 1:
            factor = writer.constant(multiple.astype(np.int32), f"{like.name}.multiple")
            value = writer.node(node, "Mul", [value, factor], f"{like.name}_units").outputs[0]
            value.dtype, value.shape = ir.DataType.INT32, like.shape
        integers.append(value)
    total = writer.node(node, "Add", integers, f"{like.name}_int32").outputs[0]
    total.dtype, total.shape = ir.DataType.INT32, like.shape
    scale = writer.constant(np.asarray(unit, np.float32), f"{like.name}.unit")
    back = writer.node(node, "DequantizeLinear", [total, scale], f"{like.name}_back").outputs[0]
    back.type, back.shape = like.type, like.shape
    back.meta.update(like.meta)
    like.replace_all_uses_with(back)
    remove_if_dead(node)
    return True


def multipliers(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute integers x_multiplier, y_multiplier and a common shift for two factors (one, or one per channel each).

    The larger one has 30 bits, so both stay below 2^30.
    """
    x, y = (np.reshape(factor, -1) for factor in (x, y))
    shift = 29 - math.frexp(max(x.max(), y.max()))[1]
    rounded = [np.minimum(np.rint(np.ldexp(factor, shift)), 2**30 - 1).astype(np.int32) for factor in (x, y)]
    return rounded[0], rounded[1], np.array([shift], np.int32)
