"""The table of bounds: how far an output may be from what it is compared with. There is no default tolerance.

Every figure carries the reason it was chosen for. "Observed" is what the trained MiniLM (6 layers, 384 wide) gave
on 64 English sentences, padding left out; the bounds stand a few times above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from intaglio.errors import UsageError


@dataclass(frozen=True)
class Exact:
    """Every value is equal."""

    reason: str

    def limit(self, largest: float) -> float:
        """Largest allowed |error|, whatever the largest |expected| is."""
        return 0.0

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True)
class Absolute:
    """|error| is at most `value`, in the unit of the output."""

    value: float
    reason: str

    def limit(self, largest: float) -> float:
        """Largest allowed |error|, whatever the largest |expected| is."""
        return self.value

    def __str__(self) -> str:
        return f"≤ {self.value:g}"


@dataclass(frozen=True)
class Relative:
    """|error| is at most `value` times the largest magnitude of the expected output."""

    value: float
    reason: str

    def limit(self, largest: float) -> float:
        """Largest allowed |error| where the largest |expected| is `largest`."""
        return self.value * largest

    def __str__(self) -> str:
        return f"≤ {self.value:g} of the largest"


@dataclass(frozen=True)
class CosineFloor:
    """The cosine of every vector along the last axis with the expected one is at least `value`."""

    value: float
    reason: str


Bound = Exact | Absolute | Relative


@dataclass(frozen=True)
class Bounds:
    """What a bundle of one dtype is held to."""

    output: Bound
    cosine: CosineFloor
    layer: Relative  # for a value inside the graph


# By the dtype of the bundle's weights.
BOUNDS = {
    "float32": Bounds(
        output=Absolute(1e-4, "order of summation; what the project promises of a float32 export"),
        cosine=CosineFloor(0.99999, "order of summation; observed 1 - 1e-12"),
        layer=Relative(1e-5, "order of summation; observed 2.2e-6"),
    ),
    "float16": Bounds(
        output=Relative(5e-3, "11 bits of mantissa through 6 layers; observed 1.1e-3"),
        cosine=CosineFloor(0.9999, "11 bits of mantissa; observed 0.999997"),
        layer=Relative(1e-2, "11 bits of mantissa; observed 2.8e-3, after attention"),
    ),
    "bfloat16": Bounds(
        output=Relative(3e-2, "8 bits of mantissa through 6 layers; observed 8.8e-3"),
        cosine=CosineFloor(0.999, "8 bits of mantissa; observed 0.99988"),
        layer=Relative(8e-2, "8 bits of mantissa; observed 2.6e-2, after attention"),
    ),
    "int8": Bounds(
        output=Relative(0.3, "8-bit weights and activations through 6 layers; observed 0.11"),
        cosine=CosineFloor(0.93, "8-bit weights and activations; observed 0.978 (a token), 0.992 (a sentence)"),
        layer=Relative(0.3, "8-bit weights and activations; observed 0.11"),
    ),
}
INTEGER = Exact("integers and booleans have no rounding")


def bounds_for(dtype: str, max_abs: float | None = None, cosine: float | None = None) -> Bounds:
    """The bounds of a bundle of this dtype, with what the user gave in their place.

    Raises `UsageError` for figures that bound nothing, and for a dtype without bounds unless both are given.
    """
    if max_abs is not None and not (math.isfinite(max_abs) and max_abs >= 0):
        raise UsageError(f"--max-abs {max_abs:g}: expected a finite number, 0 or above.")
    if cosine is not None and not -1 <= cosine <= 1:
        raise UsageError(f"--cosine {cosine:g}: expected a number from -1 to 1.")
    bounds = BOUNDS.get(dtype)
    if bounds is None:
        if max_abs is None or cosine is None:
            raise UsageError(
                f"bundle of dtype {dtype!r}: there are bounds for {', '.join(BOUNDS)}. Give --max-abs and --cosine."
            )
        bounds = BOUNDS["int8"]  # its layer bound, the widest; the others are replaced below
    if max_abs is not None:
        bounds = replace(bounds, output=Absolute(max_abs, "given with --max-abs"))
    if cosine is not None:
        bounds = replace(bounds, cosine=CosineFloor(cosine, "given with --cosine"))
    return bounds
