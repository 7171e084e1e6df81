"""Convert float32 constants to float16, with clamping of numbers outside its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

LARGEST = np.float16(65504)
SMALLEST = np.float16(2**-24)  # 5.96e-8, the smallest subnormal
BLOCK = 1 << 16  # numbers converted at a time: all intermediate results stay in the cache of a core
LAZY_ABOVE = 4096  # bytes; larger tensors are converted when they are written


@dataclass
class OutOfRange:
    """Counts of numbers outside the range of float16: too large (clamped), or too small (raised from 0)."""

    clamped: int = 0
    raised: int = 0

    def reasons(self) -> list[str]:
        """Return one line for each kind that occurred."""
        lines = []
        if self.clamped:
            lines.append(f"{_numbers(self.clamped)} beyond ±{LARGEST:.0f}, clamped to it")
        if self.raised:
            lines.append(f"{_numbers(self.raised)} closer to 0 than {SMALLEST:.2g}, raised to it")
        return lines


def _numbers(count: int) -> str:
    return "1 number" if count == 1 else f"{count} numbers"


def convert(array: npt.NDArray[Any], found: OutOfRange | None = None) -> npt.NDArray[np.float16]:
    """Convert float32, float64 or bfloat16 to float16: finite numbers stay finite, nonzero ones stay nonzero.

    Infinities and NaN stay. Numbers beyond the range are added to `found`.
    """
    result = np.empty(array.shape, np.float16)
    given, written = np.ascontiguousarray(array).reshape(-1), result.reshape(-1)
    for start in range(0, given.size, BLOCK):
        block = given[start : start + BLOCK]
        block = block if block.dtype.kind == "f" else block.astype(np.float32)  # bfloat16
        rounded = written[start : start + BLOCK]
        with np.errstate(over="ignore", under="ignore"):
            rounded[...] = block
        magnitude = rounded.view(np.uint16) & 0x7FFF
        # As an unsigned number, 0 becomes the largest: one comparison finds both ends of the range, which are rare.
        ends = np.flatnonzero(magnitude - np.uint16(2) >= _bits(LARGEST) - 2)
        if ends.size:
            rounded[ends] = _clamped(block[ends], rounded[ends], found)
    return result


def _clamped(
    exact: npt.NDArray[Any], rounded: npt.NDArray[np.float16], found: OutOfRange | None
) -> npt.NDArray[np.float16]:
    """`rounded` with its infinities and zeros moved to the bounds where `exact` is finite or not zero."""
    size = np.abs(exact)
    if found:
        found.clamped += int(np.count_nonzero((size > LARGEST) & np.isfinite(exact)))
        found.raised += int(np.count_nonzero((size < SMALLEST) & (exact != 0)))
    bounds = np.where(size > 1, LARGEST, SMALLEST)
    wrong = (np.isinf(rounded) & np.isfinite(exact)) | ((rounded == 0) & (exact != 0))
    return np.where(wrong, np.copysign(bounds, rounded), rounded)


def _bits(number: np.float16) -> int:
    return int(number.view(np.uint16))


def half(tensor: ir.TensorProtocol, found: OutOfRange) -> ir.TensorProtocol:
    """Convert a float32 tensor to float16.

    A large one is converted on every access and not cached, so the weights of a large model, which are memory-mapped,
    are never in memory all at once.
    """
    converted = convert(tensor.numpy(), found)
    if tensor.nbytes <= LAZY_ABOVE:
        return ir.tensor(converted, name=tensor.name)
    return ir.LazyTensor(
        lambda: ir.tensor(convert(tensor.numpy()), name=tensor.name),
        ir.DataType.FLOAT16,
        ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )
