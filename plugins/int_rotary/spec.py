"""IntRotary: rotary position embedding (RoFormer, Su et al., 2021) of queries or keys, from 16 to 8 bits.

Each head's channels are two halves, a and b, and the channels i of both are turned by the position's angle i:

    a' = a·cos - b·sin        b' = b·cos + a·sin        y = clip(round((a', b')·multiplier / 2^shift))

with cosines and sines in Q14. x is limited to 16 bits, and they to ±1, so a' and b' are within ±2^30: exact in 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import integer_math
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values, integers, with_bits
from intaglio.plugins.int_attention.spec import MAXIMUM_HEADS
from intaglio.plugins.int_rotary.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Shape


class IntRotary(Operator):
    """x turned by the angles of its positions, requantised; `cosine` and `sine` have a row for each position."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """The channels divide into heads, and these into two halves of as many channels as the tables."""
        super().check(inputs, attributes)
        heads = attributes["num_heads"]
        if not 1 <= heads <= MAXIMUM_HEADS:
            raise GraphError(f"{self.name}: num_heads={heads}, expected 1 to {MAXIMUM_HEADS}.")
        width, half = (None if each is None or each.shape is None else each.shape[-1] for each in inputs[:2])
        if isinstance(width, int) and isinstance(half, int) and width != 2 * heads * half:
            raise GraphError(f"{self.name}: x has {width} channels, expected 2·{heads}·{half}: 2·heads·half.")

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: int8 [batch, length, heads·depth]."""
        x, cosine, sine, multiplier, shift = map(integers, inputs)
        batch, length, width = x.shape
        heads = attributes["num_heads"]
        halves = integer_math.clip(x, integer_math.INT16).reshape(batch, length, heads, 2, width // heads // 2)
        first, second = halves[..., 0, :], halves[..., 1, :]
        c, s = (integer_math.clip(table, integer_math.UNIT)[:, None] for table in (cosine, sine))
        turned = np.stack([first * c - second * s, second * c + first * s], axis=-2).reshape(x.shape)
        y = integer_math.requantize(turned, multiplier, shift)
        return [with_bits(integer_math.clip(y, integer_math.INT8), 8)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The shape of x."""
        return [inputs[0] or (None, None, None)]

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """Four products, and one rounded shift."""
        x, cosine, sine, multiplier, shift = inputs
        assert x is not None and cosine is not None and sine is not None
        assert multiplier is not None and shift is not None
        heads = graph.split_heads(x, attributes["num_heads"], (0, 1, 2, 3))
        limited = graph.clip(graph.wide(heads), integer_math.INT16)
        first, second = graph.split(limited, 2, axis=3)
        c, s = (
            graph.op("Unsqueeze", graph.clip(graph.wide(table), integer_math.UNIT), graph.constant(np.array([1])))
            for table in (cosine, sine)
        )
        turned = graph.op(
            "Concat",
            graph.subtract(graph.multiply(first, c), graph.multiply(second, s)),
            graph.add(graph.multiply(second, c), graph.multiply(first, s)),
            axis=3,
        )
        joined = graph.bounded(graph.op("Reshape", turned, graph.op("Shape", x)), 2.0**30)
        return [graph.bits(graph.rescale([(joined, multiplier)], shift, 8), 8)]


OPERATOR = IntRotary()
