"""FuseProjections: fuse the linear layers of an attention's query, key and value into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant, remove_if_dead
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.plugins import DOMAIN

PROJECTIONS = 3  # the first inputs of an IntAttention
CONSTANTS = ("weight", "bias", "multiplier", "shift")  # of an IntLinear, its inputs after x


@dataclass(frozen=True)
class FuseProjections(Pass):
    """Three IntLinear → IntAttention become one IntLinear of three times the width → IntAttention, which reads thirds.

    The result is bit-identical. One product instead of three reads its input once, is better distributed over threads,
    and needs one kernel launch instead of three.

    1. The three have the same input and attributes, no activation, and constants; their outputs have no other users.
    2. Left, with the reason: all other IntAttention nodes that are not fused yet.
    """

    name: ClassVar[str] = "fuse_projections"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in list(model.graph):
            if (node.domain, node.op_type) != (DOMAIN, "IntAttention") or node.attributes.get_int("packed"):
                continue
            projections = [None if x is None else x.producer() for x in node.inputs[:PROJECTIONS]]
            if reason := _obstacle(projections):
                counts.leave(f"{node.outputs[0].name}: {reason}")
            else:
                _fuse(writer, node, [each for each in projections if each is not None])
                counts.add("attention")


def _obstacle(projections: Sequence[ir.Node | None]) -> str | None:
    """Return the reason why these cannot be fused."""
    linear = [each for each in projections if each is not None and (each.domain, each.op_type) == (DOMAIN, "IntLinear")]
    if len(linear) < PROJECTIONS:
        return "not all of its inputs are outputs of an IntLinear"
    if len({each.inputs[0] for each in linear}) > 1:
        return "its query, key and value are computed from different inputs"
    if any(len(each.outputs[0].uses()) > 1 or each.outputs[0].is_graph_output() for each in linear):
        return "its query, key and value have other users"
    if any(each.attributes.get_int("bits", 8) != 8 or each.attributes.get_string("activation", "") for each in linear):
        return "its query, key and value are not linear"
    if any(constant(value) is None for each in linear for value in each.inputs[1 : 1 + len(CONSTANTS)]):
        return "weights, biases or factors of its query, key and value are not constants"
    shapes = {tuple(each.inputs[1].shape) for each in linear if each.inputs[1] is not None and each.inputs[1].shape}
    if len(shapes) > 1:
        return f"its query, key and value have weights of different shapes, {shapes}"
    return None


def _fuse(writer: Writer, attention: ir.Node, projections: Sequence[ir.Node]) -> None:
    first = projections[0]
    x = first.inputs[0]
    name = str(attention.outputs[0].name)
    constants = [
        writer.constant(_side_by_side(projections, index), f"{name}.projections.{kind}")
        for index, kind in enumerate(CONSTANTS, 1)
    ]
    joined = writer.node(first, "IntLinear", [x, *constants], f"{name}_projections", DOMAIN, bits=8).outputs[0]
    joined.dtype = ir.DataType.INT8
    shape = first.outputs[0].shape
    if shape is not None:
        joined.shape = ir.Shape([*shape[:-1], sum(_columns(each) for each in projections)])
    for index in range(PROJECTIONS):
        attention.replace_input_with(index, joined)
    attention.attributes.add(ir.AttrInt64("packed", 1))
    for each in projections:
        remove_if_dead(each)


def _side_by_side(projections: Sequence[ir.Node], index: int) -> npt.NDArray[np.generic]:
    """Concatenate a constant of all projections; a factor for all columns of one projection is repeated."""
    arrays = [(_array(each, index), _columns(each)) for each in projections]
    return np.concatenate([np.broadcast_to(array, (*array.shape[:-1], columns)) for array, columns in arrays], axis=-1)


def _columns(node: ir.Node) -> int:
    columns: int = _array(node, 1).shape[-1]
    return columns


def _array(node: ir.Node, index: int) -> npt.NDArray[np.generic]:
    tensor = constant(node.inputs[index])
    assert tensor is not None
    return tensor.numpy()
