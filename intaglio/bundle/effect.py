"""The effect of a graph pass on the values that a model computes; validation chooses its bounds by it."""

from __future__ import annotations

from enum import Enum
from typing import Self


class Effect(Enum):
    """Effects from none to largest. The value is the name in recipe files and manifests, `description` in reports."""

    EXACT = "exact", "the same computation"  # equal but for the order of summation
    FLOAT16 = "float16", "float16 arithmetic"
    WEIGHTS_8 = "weights-8", "8-bit weights"
    WEIGHTS_4 = "weights-4", "weights of 4 to 6 bits"
    WEIGHTS_3 = "weights-3", "weights of 3 bits or fewer"
    INT8 = "int8", "8-bit weights and activations"
    REPLACED = "replaced", "parts removed, replaced or trained"

    description: str

    def __new__(cls, value: str, description: str) -> Self:
        """A member of this value."""
        member = object.__new__(cls)
        member._value_, member.description = value, description
        return member

    @classmethod
    def of_bits(cls, bits: int) -> Effect:
        """The effect of weights stored in `bits` bits."""
        return cls.WEIGHTS_8 if bits == 8 else cls.WEIGHTS_4 if bits >= 4 else cls.WEIGHTS_3
