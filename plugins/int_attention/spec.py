"""IntAttention: scores, i-softmax and values of multi-head attention in one operator, from int8 to int8.

The scores are exact in int32, with a bias of relative positions or without. The exponentials of a row are 15-bit
integers relative to its maximum, as two planes of bytes, so their products with the values are exact too; the row's sum
is divided out after the values. So no row is too long: every entry above 2^-16 of the largest has its share, and the
shares sum to one.

Ranges, for up to 65535 keys: each plane's sum |Σ byte·value| <= 255·128·65535 < 2^31; see `weighted_average` for the
rest. Scores need depth·2^14 < 2^31, with a bias depth·2^14 <= 2^30, to which up to 2^30 is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import integer_math, operation_counts
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values, integers, with_bits
from intaglio.plugins.int_attention.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Shape, check_channels

if TYPE_CHECKING:
    import onnx_ir as ir

Integers = integer_math.Integers

MAXIMUM_HEADS = 1 << 16
BIASES = (-(2**30), 2**30)  # of a score
BIASED_DEPTH = 1 << 16  # of a head with a bias
PACKED = 3  # query, key and value in one tensor


class IntAttention(Operator):
    """softmax(query·keyᵀ·scale)·value per head, requantised; `scale` is the real value of one unit of query·key.

    With `packed` each of the three is a third of the channels of what is given for it: the query the first one, the key
    the second, the value the last. So one product with a joined weight can make all three, and is given three times.
    """

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """The channels divide into heads, and match the factors."""
        super().check(inputs, attributes)
        if inputs[6] is not None and inputs[5] is None:
            raise GraphError(f"{self.name}: bias without mask, expected both. Give a mask of True.")
        integer_math.exp_constants(attributes["scale"])
        query = inputs[0]
        width = None if query is None or query.shape is None else query.shape[-1]
        parts = "3 times " if attributes["packed"] else ""
        heads = attributes["num_heads"]
        if not 1 <= heads <= MAXIMUM_HEADS:
            raise GraphError(f"{self.name}: num_heads={heads}, expected 1 to {MAXIMUM_HEADS}.")
        if not isinstance(width, int):
            return
        if width % (heads * PACKED if parts else heads):
            raise GraphError(f"{self.name}: query has {width} channels, which do not divide into {parts}{heads} heads.")
        check_channels(self.name, width // PACKED if parts else width, inputs[3:5])
        if inputs[6] is not None and (depth := width // heads // (PACKED if parts else 1)) > BIASED_DEPTH:
            raise GraphError(f"{self.name}: heads of {depth} channels with a bias, expected at most {BIASED_DEPTH}.")

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[context]: int8 [batch, queries, heads·depth]."""
        query, key, value, multiplier, shift = map(integers, inputs[:5])
        heads = attributes["num_heads"]
        if attributes["packed"]:
            query, key, value = (_third(x, index) for index, x in enumerate((query, key, value)))
        scores = _split(query, heads) @ _split(key, heads).swapaxes(-1, -2)
        if inputs[6] is not None:
            scores = scores + integer_math.clip(integers(inputs[6]), BIASES)
        mask = None if inputs[5] is None else np.broadcast_to(inputs[5].astype(np.bool_), scores.shape)
        p = integer_math.masked_exp(scores, mask, integer_math.exp_constants(attributes["scale"]))
        total = p.sum(axis=-1, keepdims=True, dtype=np.int64)
        average = integer_math.weighted_average(p @ _split(value, heads), total)
        joined = average.swapaxes(1, 2).reshape(query.shape)
        y = integer_math.requantize(joined, multiplier, shift)
        return [with_bits(integer_math.clip(y, integer_math.INT8), 8)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The shape of the query."""
        *lengths, width = inputs[0] or (None,)
        if attributes["packed"]:
            width = width // PACKED if isinstance(width, int) else None
        return [(*lengths, width)]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """Those of both products."""
        return operation_counts.attention(self.shapes(shapes, attributes)[0], shapes[1])

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """Three matrix products, and the exponential as a table."""
        query, key, value, multiplier, shift, mask, bias = inputs
        assert query is not None and key is not None and value is not None
        assert multiplier is not None and shift is not None
        heads = attributes["num_heads"]
        query, key, value = (graph.operand(x) for x in (query, key, value))
        if attributes["packed"]:
            query, key, value = _thirds(graph, [query, key, value])
        graph.last_axis = 3  # of the scores
        q = graph.split_heads(query, heads, (0, 2, 1, 3))
        k = graph.split_heads(key, heads, (0, 2, 3, 1))
        v = graph.split_heads(value, heads, (0, 2, 1, 3))
        scores = graph.matmul(q, k)
        if bias is not None:
            scores = graph.add(graph.wide(scores), graph.clip(graph.wide(bias), BIASES))
        p = graph.masked_exp(scores, mask, integer_math.exp_constants(attributes["scale"]))
        average = graph.weighted_average(p, v)
        joined = graph.op("Reshape", graph.op("Transpose", average, perm=[0, 2, 1, 3]), graph.op("Shape", query))
        return [graph.bits(graph.rescale([(joined, multiplier)], shift, 8), 8)]


OPERATOR = IntAttention()


def _split(x: Integers, heads: int) -> Integers:
    """[batch, length, heads·depth] as [batch, heads, length, depth]."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def _third(x: Integers, index: int) -> Integers:
    """The channels of the query (0), the key (1) or the value (2) among those of all three."""
    thirds: list[Integers] = np.split(x, PACKED, axis=-1)
    return thirds[index]


def _thirds(graph: Body, packed: Sequence[ir.Value]) -> Results:
    """The same in the body; a value given more than once is split once."""
    thirds = {x: graph.split_channels(x, PACKED) for x in dict.fromkeys(packed)}
    return [thirds[x][index] for index, x in enumerate(packed)]
