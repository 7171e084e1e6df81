"""GroupMatMul: a linear layer whose weight is stored as 2 to 6 or 8 bits for each value, uniform within groups.

    w[n, k] = scales[n, g]·(q[n, k] - zero_points[n, g]),   g = k // group_size   (QIGen, section 2)
    w[n, k] = scales[n, g]·(q[n, k] - zero_points[n, g]) - minimums[g, n]         with `minimums`
    w[n, k] = scales[n, g]·levels[q[n, k]]                                        with `levels`
    y = x·wᵀ

The first is the result of round-to-nearest, GPTQ and AWQ; missing zero points are 2^(bits - 1), the middle. Levels are
for numbers that are no equal steps: NF4, FP4, MXFP4, NVFP4 and IQ4 in 4 bits, FP8 in 8. GGUF's K-quants have
minimums; graphs in files have standard operators for them, which sessions on a CPU put in here.
`activation_bits` is as in LutMatMul; with 8, up to 256 values of x in whole groups keep 8 bits of their largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import operation_counts
from intaglio.plugins.bit_packing import WORD, unpack, unpack_body
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values
from intaglio.plugins.group_matmul.signature import LARGEST_GROUP, LEVEL_BITS, SIGNATURE, smallest_group
from intaglio.plugins.lut_matmul.spec import check_depth, check_width, product
from intaglio.plugins.operator_inputs import Array, Shape

if TYPE_CHECKING:
    import onnx_ir as ir


BLOCKS = (
    16,
    32,
    64,
    128,
    256,
)  # sizes that ONNX Runtime (1.31) fuses with the product; it unpacks others in every run


class GroupMatMul(Operator):
    """x·wᵀ with w = scale·(q - zero point), or scale·level of q; `packed` holds q as `bit_packing` packs it."""

    signature = SIGNATURE

    def complete(self, attributes: Attributes) -> dict[str, Any]:
        """Checked: K fills whole words, and groups fill K."""
        complete = super().complete(attributes)
        depth, size, least = complete["K"], complete["group_size"], smallest_group(complete["bits"])
        check_depth(self.name, depth)
        if not least <= size <= LARGEST_GROUP or size % least or depth % size:
            raise GraphError(
                f"{self.name}: group_size={size}, expected a multiple of {least}, at most {LARGEST_GROUP}, "
                f"that divides K={depth}."
            )
        return complete

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Check the numbers of words and groups against the attributes."""
        super().check(inputs, attributes)
        bits, depth = attributes["bits"], attributes["K"]
        check_width(self.name, "x", inputs[0], depth, "K")
        check_width(self.name, "packed", inputs[1], depth * bits // WORD, "K·bits/32")
        check_width(self.name, "scales", inputs[2], depth // attributes["group_size"], "K/group_size")
        if inputs[4] is None:
            return
        check_width(self.name, "levels", inputs[4], 2**bits, "2^bits")
        beside = [self.inputs[index].name for index in (3, 5) if inputs[index] is not None]
        if bits not in LEVEL_BITS or beside:
            raise GraphError(
                f"{self.name}: levels with {' and '.join([f'{bits} bits', *beside])}, expected 4 or 8 bits, and no "
                "zero_points or minimums beside them."
            )

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: the dtype of x, computed in float64."""
        x, *constants = inputs
        assert x is not None
        return [product(x, group_weight(constants, attributes["bits"], attributes["group_size"]))]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """[..., N]."""
        x, packed = inputs[0] or (None,), inputs[1] or (None,)
        return [(*x[:-1], packed[0])]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """The operations of the product."""
        return operation_counts.product(self.shapes(shapes, attributes)[0], shapes[0])

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """DequantizeLinear and MatMul, which ONNX Runtime fuses; else the weight by Sub and Mul."""
        x, packed, scales, zero_points, levels, minimums = inputs
        assert x is not None and packed is not None and scales is not None
        bits, depth, size = (attributes[name] for name in ("bits", "K", "group_size"))
        weight = _dequantized(graph, inputs, bits, size)
        if weight is not None:
            return [graph.float_matmul(x, weight)]
        numbers = unpack_body(graph, packed, bits, depth)
        grouped = graph.op("Reshape", numbers, graph.constant(np.array([0, depth // size, size])))
        last = graph.constant(np.array([2]))
        if levels is not None:
            steps = graph.op("Gather", levels, grouped)
        else:
            middle = graph.constant(2 ** (bits - 1), np.int32)
            if zero_points is not None:
                import onnx_ir as ir

                middle = graph.op("Unsqueeze", graph.cast(zero_points, ir.DataType.INT32), last)
            steps = graph.op("Sub", grouped, middle)
        weight = graph.op("Mul", graph.cast_like(steps, scales), graph.op("Unsqueeze", scales, last))
        if minimums is not None:
            below = graph.op("Unsqueeze", graph.op("Transpose", minimums, perm=[1, 0]), last)
            weight = graph.op("Sub", weight, graph.cast_like(below, scales))
        return [graph.product(x, graph.op("Reshape", weight, graph.constant(np.array([0, depth]))))]


OPERATOR = GroupMatMul()


def _dequantized(graph: Body, inputs: Values, bits: int, group_size: int) -> ir.Value | None:
    """The weight [K, N] by DequantizeLinear of blocks; None unless all is constant and the blocks are `BLOCKS`."""
    _, packed, scales, zero_points, levels, minimums = inputs
    assert packed is not None
    factors = graph.fixed(scales)
    if (
        levels is not None
        or minimums is not None
        or group_size not in BLOCKS
        or factors is None
        or (zero_points is not None and graph.fixed(zero_points) is None)
    ):
        return None
    numbers = graph.numbers(packed, bits)
    if numbers is None:
        return None
    middle = graph.fixed(zero_points)
    middles = np.full(factors.shape, 2 ** (bits - 1)) if middle is None else middle
    if middles.max() >= 2**bits:
        return None  # no number of as many bits
    blocks = graph.constant(factors.T, factors.dtype.type), graph.constant(middles.T, graph.small_integer(bits))
    return graph.op("DequantizeLinear", numbers, *blocks, axis=0, block_size=group_size)


def group_weight(constants: Sequence[Array | None], bits: int, group_size: int) -> Array:
    """The weight [N, K] from `packed`, `scales`, `zero_points`, `levels` and `minimums`, in float64."""
    packed, scales, zero_points, levels, minimums = constants
    assert packed is not None and scales is not None
    numbers = unpack(packed.view(np.int32), bits).reshape(len(packed), -1, group_size)
    middle = np.float64(2 ** (bits - 1)) if zero_points is None else zero_points.astype(np.float64)[:, :, None]
    steps = numbers.astype(np.float64) - middle if levels is None else levels.astype(np.float64)[numbers]
    grouped = scales.astype(np.float64)[:, :, None] * steps
    if minimums is not None:
        grouped -= minimums.astype(np.float64).T[:, :, None]
    weight: Array = grouped.reshape(len(packed), -1)
    return weight
