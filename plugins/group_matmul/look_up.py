"""Rows of a quantised table, looked up by standard operators in the constants that GroupMatMul has.

    row[k] = scales[n, g]·(q[n, k] - zero_points[n, g]) - minimums[g, n],   g = k // group_size
    row[k] = scales[n, g]·levels[q[n, k]]                                   with levels

Codes are unpacked after they are gathered, so that the table is in memory as codes alone, and once: a head that is tied
to the embedding multiplies by the same constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from intaglio.plugins import constant_folding
from intaglio.plugins.bit_packing import WORD, unpack_body

if TYPE_CHECKING:
    import onnx_ir as ir

    from intaglio.plugins.body_arithmetic import BodyArithmetic

PACKED = ".packed"  # the end of the codes' name


class Codes(NamedTuple):
    """What a node looks up: numbers of `bits` bits, `width` in a row."""

    bits: int
    width: int


def look_up(
    graph: BodyArithmetic,
    indices: ir.Value,
    packed: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None,
    minimums: ir.Value | None,
    levels: ir.Value | None,
    codes: Codes,
) -> ir.Value:
    """The rows at `indices`, float32 [..., width].

    packed       int32 [N, width·bits/32]
    scales       float32 [N, groups]
    zero_points  uint8 [N, groups]; None: 2^(bits - 1)
    minimums     float32 [groups, N]; None: 0
    levels       float32 [2^bits]; None: the codes, less the zero points
    """
    import onnx_ir as ir

    assert indices.shape is not None and scales.shape is not None
    axes = len(indices.shape)
    bits, width = codes
    outer, last = [0] * axes, graph.constant(np.array([-1]))
    groups = int(scales.shape.numpy()[1])
    numbers = unpack_body(graph, graph.op("Gather", packed, indices), bits, width, axes)
    grouped = graph.op("Reshape", numbers, graph.constant(np.array([*outer, groups, width // groups])))
    if levels is not None:
        steps = graph.op("Gather", levels, grouped)
    else:
        middle = graph.constant(2 ** (bits - 1), np.int32)
        if zero_points is not None:
            middle = graph.op("Cast", graph.op("Gather", zero_points, indices), to=ir.DataType.INT32)
            middle = graph.op("Unsqueeze", middle, last)
        steps = graph.op("Cast", graph.op("Sub", grouped, middle), to=ir.DataType.FLOAT)
    rows = graph.op("Mul", steps, graph.op("Unsqueeze", graph.op("Gather", scales, indices), last))
    if minimums is not None:
        below = graph.op("Transpose", graph.op("Gather", minimums, indices, axis=1), perm=[*range(1, axes + 1), 0])
        rows = graph.op("Sub", rows, graph.op("Unsqueeze", below, last))
    return graph.op("Reshape", rows, graph.constant(np.array([*outer, width])))


def codes_looked_up(node: ir.Node) -> Codes | None:
    """What `node` looks up if it is the Gather of packed codes that `look_up` wrote; else None."""
    table = node.inputs[0] if node.domain == "" and node.op_type == "Gather" else None
    if table is None or not str(table.name).endswith(PACKED):
        return None
    for user, _ in node.outputs[0].uses():
        shape = constant_folding.known(user.inputs[1]) if user.op_type == "Reshape" else None
        if shape is not None and len(shape) > 2:
            return Codes(int(shape[-1]), int(shape[-2]) * WORD)
    return None
