"""CachedAttention: attention of a step's tokens to the slots of a cache, of which only those attended to cost anything.

What ONNX's Attention computes from the same inputs, except that a token which attends to no slot, as padding does,
gets zeros. The memory that is read grows with the slots that some token of the row attends to, not with the capacity:
rows of a batch pay for their own length, layers with a window for the window, and a prompt for the half of its scores
below the diagonal.

Keys and values are float32, or both in slots of fewer bits, as QuantizeCache writes them: of uint8, or of the same
bytes in float32. `value_depth` is then the number of a value's channels, which its slots do not tell.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import operation_counts
from intaglio.plugins.cached_attention.signature import SIGNATURE
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values
from intaglio.plugins.operator_inputs import Array, Shape
from intaglio.plugins.quantize_cache.slots import WORD, dequantize, slot_bytes
from intaglio.plugins.quantize_cache.slots_body import dequantized

FLOAT_BITS = 32
MAXIMUM_DEPTH = 2**20  # of slots


class CachedAttention(Operator):
    """softmax(query·keyᵀ·scale over the slots where mask is true)·value; heads of queries share heads of the cache."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """The heads of the cache divide those of the queries."""
        super().check(inputs, attributes)
        self._check_widths(inputs, attributes)
        heads, kv_heads = (
            None if given is None or given.shape is None else given.shape[1] for given in (inputs[0], inputs[1])
        )
        if isinstance(heads, int) and isinstance(kv_heads, int) and (kv_heads == 0 or heads % kv_heads):
            raise GraphError(f"{self.name}: key has {kv_heads} heads, expected a divisor of the query's {heads}.")

    def _check_widths(self, inputs: Inputs, attributes: Attributes) -> None:
        key_bits, value_bits, value_depth = (attributes[name] for name in ("key_bits", "value_bits", "value_depth"))
        floats = key_bits == FLOAT_BITS
        if (
            floats != (value_bits == FLOAT_BITS)
            or floats != (value_depth == 0)
            or not 0 <= value_depth <= MAXIMUM_DEPTH
        ):
            raise GraphError(
                f"{self.name}: key_bits={key_bits}, value_bits={value_bits}, value_depth={value_depth}, expected 32, "
                "32 and 0, or fewer bits of both and a depth up to 2^20."
            )
        depth = None if inputs[0] is None or inputs[0].shape is None else inputs[0].shape[-1]
        for name, given, channels, bits in (
            ("key", inputs[1], depth, key_bits),
            ("value", inputs[2], value_depth or None, value_bits),
        ):
            if given is None:
                continue
            if bits == FLOAT_BITS and given.dtype not in (None, "float32"):
                raise GraphError(f"{self.name}: {name} is {given.dtype}, expected float32 for {name}_bits={bits}.")
            width = None if given.shape is None else given.shape[-1]
            if not isinstance(width, int) or not isinstance(channels, int):
                continue
            element = WORD if given.dtype == "float32" else 1
            expected = channels if bits == FLOAT_BITS else slot_bytes(channels, bits) // element
            if width != expected:
                raise GraphError(
                    f"{self.name}: {name} has {width} entries a slot, expected {expected} for depth {channels}."
                )

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[context]: float32 [batch, heads, tokens, value_depth], computed in float64."""
        query, key, value, mask = (np.asarray(each) for each in inputs)
        if attributes["key_bits"] != FLOAT_BITS:
            key = dequantize(key.view(np.uint8), query.shape[-1], attributes["key_bits"])
            value = dequantize(value.view(np.uint8), attributes["value_depth"], attributes["value_bits"])
        repeated = query.shape[1] // max(key.shape[1], 1)
        key, value = (np.repeat(each.astype(np.float64), repeated, axis=1) for each in (key, value))
        scores = query.astype(np.float64) @ key.swapaxes(-1, -2) * float(np.float32(attributes["scale"]))
        attended = np.broadcast_to(mask.astype(np.bool_), scores.shape)
        largest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf, where=attended)
        shifted = np.where(attended, scores - np.where(np.isfinite(largest), largest, 0), -np.inf)
        weights = np.exp(shifted)
        total = weights.sum(axis=-1, keepdims=True)
        context = weights @ value / np.where(total > 0, total, 1)
        return [context.astype(query.dtype)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The query's, with the depth of the values."""
        query, _, value = inputs[:3]
        return [(*(query or (None,) * 4)[:3], attributes["value_depth"] or (value or (None,))[-1])]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """Those of both products with every slot."""
        return operation_counts.attention(self.shapes(shapes, attributes)[0], shapes[1])

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """ONNX's Attention, and zeros where a token attends to nothing."""
        import onnx_ir as ir

        query, key, value, mask = inputs
        assert query is not None and key is not None and value is not None and mask is not None
        if attributes["key_bits"] != FLOAT_BITS:
            depth = None if query.shape is None else query.shape[-1]
            if ir.DataType.FLOAT in (key.dtype, value.dtype):
                raise GraphError(f"{self.name}: no standard operator reads bytes in float32. Use slots of uint8.")
            if not isinstance(depth, int):
                raise GraphError(f"{self.name}: query has an unknown number of channels, expected a number.")
            key = dequantized(graph, key, depth, attributes["key_bits"])
            value = dequantized(graph, value, attributes["value_depth"], attributes["value_bits"])
        context = graph.op("Attention", query, key, value, mask, scale=attributes["scale"])
        last = graph.constant(np.array([-1]))
        attends = graph.op("ReduceMax", graph.cast(mask, ir.DataType.INT32), last, keepdims=1)
        attends = graph.cast(attends, ir.DataType.BOOL)
        return [graph.op("Where", attends, context, graph.constant(0, np.float32))]


OPERATOR = CachedAttention()
