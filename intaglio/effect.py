"""The effect of a graph pass on the values that a model computes; validation chooses its bounds by it."""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    """Effects from none to largest; the value is the name in reports."""

    EXACT = "the same computation"  # equal but for the order of summation
    FLOAT16 = "float16 arithmetic"
    WEIGHTS_8 = "8-bit weights"
    WEIGHTS_4 = "4-bit weights"
    WEIGHTS_3 = "weights of 3 bits or fewer"
    INT8 = "8-bit weights and activations"
    REPLACED = "parts removed, replaced or trained"

    @classmethod
    def of_bits(cls, bits: int) -> Effect:
        """The effect of weights stored in `bits` bits."""
        return {8: cls.WEIGHTS_8, 4: cls.WEIGHTS_4}.get(bits, cls.WEIGHTS_3)
