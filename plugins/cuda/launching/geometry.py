"""Helpers for operators' `launch.py`: the launch parameters of a kernel, from the shapes of a node's inputs.

`launch.py` has the function `launch(inputs, attributes, sm) -> Launch`, for a GPU of compute capability `sm`, and
where a GPU decides which of several is fastest, `alternatives`, with the same arguments, which yields the others. The
lengths of `inputs` are integers, or the symbols of TensorRT's plugins: so every length is computed with `+`, `-`, `*`,
`//`, `==` and `<` (1 for true) alone, with a symbol on the left. Known lengths are integers even among symbols.
A kernel's parameters are the pointers of the node's inputs, the scalars, and the pointers of the outputs. TensorRT
carries scalars as the lengths of dimensions, which are never negative: so they lie in 0..2^31 - 1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from intaglio.errors import EngineError

PLUGINS = Path(__file__).parent.parent.parent

# An int, or a symbolic expression of TensorRT that has the four operations.
Length = Any

WARP = 32
MOST = 2**31 - 1  # of a scalar


class Tensor(NamedTuple):
    """The shape and dtype (NumPy name) of an input."""

    shape: Sequence[Length]
    dtype: str


Tensors = Sequence[Tensor | None]  # one for each input of the operator, None for one left out
Attributes = Mapping[str, Any]  # complete


@dataclass(frozen=True)
class Launch:
    """One launch of the kernel `entry`. The grid counts blocks, the block threads; scalars are in 0..2^31 - 1."""

    entry: str
    grid: tuple[Length, Length, Length]
    block: tuple[int, int, int]
    scalars: tuple[Length, ...]
    shared_bytes: Length = 0

    def __post_init__(self) -> None:
        wrong = [value for value in self.scalars if isinstance(value, int) and not 0 <= value <= MOST]
        if wrong:
            raise EngineError(f"{self.entry}: scalar {wrong[0]}, expected 0 to {MOST}. Leave the node in float.")


def product(lengths: Sequence[Length]) -> Length:
    """The number of elements of an array with these lengths; 1 for none."""
    return _joined(lengths, operator.mul, 1)


def total(lengths: Sequence[Length]) -> Length:
    """The sum of lengths; 0 for none."""
    return _joined(lengths, operator.add, 0)


def _joined(lengths: Sequence[Length], join: Callable[[Length, Length], Length], none: int) -> Length:
    """All lengths, joined two at a time: symbols first."""
    known = reduce(join, (length for length in lengths if isinstance(length, int)), none)
    symbols = [length for length in lengths if not isinstance(length, int)]
    return join(reduce(join, symbols), known) if symbols else known


def blocks(length: Length, each: int) -> Length:
    """The number of blocks of `each` that cover `length`: the quotient rounded up."""
    return (length + (each - 1)) // each


def at_least_1(length: Length) -> Length:
    """`length`, or 1 for 0."""
    return max(length, 1) if isinstance(length, int) else (length == 0) + length


def elementwise(rows: Length, channels: Length) -> tuple[tuple[Length, Length, int], tuple[int, int, int]]:
    """Grid and block of a kernel that computes each element alone, by cuda/elementwise.cuh."""
    rows_each, threads, quad = 8, 64, 4  # as there
    return (blocks(rows, rows_each), blocks(channels, quad * threads), 1), (threads, 1, 1)


def limits_around(limit: int) -> Iterator[int]:
    """Other numbers of rows at which a kernel may change its blocks: a measurement may move ours by so much."""
    yield from (4 * limit, limit // 4)


def choose(condition: Length, one: Length, other: Length) -> Length:
    """`one` if the condition, a comparison of lengths, is true, else `other`."""
    if isinstance(condition, int):
        return one if condition else other
    return condition * one + (condition == 0) * other


def four_axes(lengths: Sequence[Length], name: str) -> tuple[Length, Length, Length, Length]:
    """A shape padded with leading 1s to four axes, for cuda/broadcast.cuh. Raises `EngineError` for more axes."""
    if len(lengths) > 4:
        raise EngineError(f"{name}: {len(lengths)} axes, expected at most 4. Join some of them by a Reshape.")
    padded: list[Length] = [*[1] * (4 - len(lengths)), *lengths]
    return padded[0], padded[1], padded[2], padded[3]


def broadcast_length(a: Length, b: Length) -> Length:
    """The length that two axes broadcast to: `a`, unless it is 1, perhaps only once the engine runs."""
    if isinstance(a, int):
        return b if a == 1 else a
    return a if isinstance(b, int) and b == 1 else (a == 1) * b + (a - (a == 1))


def float_halves(value: float) -> tuple[int, int]:
    """The low and the high 16 bits of a float32, as two scalars: in one, a negative number would not fit."""
    bits = int(np.float32(value).view(np.uint32))
    return bits & 0xFFFF, bits >> 16


def constants(values: Any) -> tuple[int, ...]:
    """The integer fields of a dataclass of constants, in order."""
    integers = (getattr(values, field.name) for field in fields(values))
    return tuple(value for value in integers if isinstance(value, int))
