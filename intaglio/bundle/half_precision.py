"""Convert float32 constants to float16, with clamping of numbers outside its range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

LARGEST = np.float16(65504)
SMALLEST = np.float16(2**-24)  # 5.96e-8, the smallest subnormal
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


def convert(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Convert to float16; finite numbers stay finite, nonzero numbers stay nonzero; infinities and NaN stay."""
    with np.errstate(over="ignore", under="ignore"):
        result = array.astype(np.float16)
    for wrong, bound in ((np.isinf(result) & np.isfinite(array), LARGEST), ((result == 0) & (array != 0), SMALLEST)):
        np.copyto(result, np.where(np.signbit(result), -bound, bound), where=wrong, casting="same_kind")
    return result


def count(array: npt.NDArray[np.float32], found: OutOfRange) -> None:
    """Add the numbers that `convert` clamps or raises to `found`."""
    too_large = ((array > LARGEST) | (array < -LARGEST)) & np.isfinite(array)
    found.clamped += int(np.count_nonzero(too_large))
    found.raised += int(np.count_nonzero((array > -SMALLEST) & (array < SMALLEST) & (array != 0)))


def half(tensor: ir.TensorProtocol, found: OutOfRange) -> ir.TensorProtocol:
    """Convert a float32 tensor to float16.

    A large one is converted on every access and not cached, so the weights of a large model, which are memory-mapped,
    are never in memory all at once.
    """
    count(tensor.numpy(), found)
    if tensor.nbytes <= LAZY_ABOVE:
        return ir.tensor(convert(tensor.numpy()), name=tensor.name)
    return ir.LazyTensor(
        lambda: ir.tensor(convert(tensor.numpy()), name=tensor.name),
        ir.DataType.FLOAT16,
        ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )
