"""QuantizeCache: new keys or values of a decoder in 8 or 4 bits, as slots that TensorScatter writes into its cache.

CachedAttention reads such slots; `slots.py` describes their bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values
from intaglio.plugins.operator_inputs import Array, Shape
from intaglio.plugins.quantize_cache.signature import SIGNATURE
from intaglio.plugins.quantize_cache.slots import quantize, slot_bytes
from intaglio.plugins.quantize_cache.slots_body import quantized

BYTE = 8  # bits


class QuantizeCache(Operator):
    """Each row of x, the key or value of a head and token, as a slot."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """A row has at least one channel."""
        super().check(inputs, attributes)
        if inputs[0] is not None and inputs[0].shape is not None and inputs[0].shape[-1] == 0:
            raise GraphError(f"{self.name}: x has rows of 0 channels, expected at least 1.")

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[slots]: uint8 [..., slot_bytes], or the same bytes as float32 [..., slot_bytes / 4]."""
        slots = quantize(np.asarray(inputs[0]), attributes["bits"])
        return [slots if attributes["element_bits"] == BYTE else slots.view(np.float32)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The shape of x, with the elements of a slot in place of the channels."""
        (*leading, depth) = inputs[0] or (None,)
        element = attributes["element_bits"] // BYTE
        return [(*leading, slot_bytes(depth, attributes["bits"]) // element if isinstance(depth, int) else None)]

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """Groups by a Gather; exponents of scales by comparisons with powers of two. Words have no body."""
        assert inputs[0] is not None
        if attributes["element_bits"] != BYTE:
            raise GraphError(f"{self.name}: no standard operator makes words of bytes. Use element_bits=8.")
        return [quantized(graph, inputs[0], attributes["bits"])]


OPERATOR = QuantizeCache()
