"""What a graph pass does to the numbers that a model computes: what validation chooses its bounds by."""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    """From none to most; the value is how reports call it."""

    EXACT = "the same computation"  # equal but for the order of summation
    FLOAT16 = "float16 arithmetic"
    WEIGHTS_8 = "8-bit weights"
    WEIGHTS_4 = "4-bit weights"
    WEIGHTS_3 = "weights of 3 bits or fewer"
    INT8 = "8-bit weights and activations"
    REPLACED = "parts removed, replaced or trained"

    @classmethod
    def of_bits(cls, bits: int) -> Effect:
        """The effect of weights stored in so many bits."""
        return {8: cls.WEIGHTS_8, 4: cls.WEIGHTS_4}.get(bits, cls.WEIGHTS_3)
