"""An array in device memory: an address, a shape and strides. Its content is copied, but never read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DeviceArray:
    """`shape` elements of `dtype` starting at `address`, `strides` bytes apart. Slices are views, as in NumPy."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    @classmethod
    def contiguous_at(cls, address: int, shape: Sequence[int], dtype: npt.DTypeLike) -> DeviceArray:
        """A C-contiguous array at `address`."""
        kind = np.dtype(dtype)
        strides = [kind.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return cls(address, tuple(shape), kind, tuple(strides))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the array is C-contiguous."""
        expected = self.contiguous_at(self.address, self.shape, self.dtype).strides
        return all(
            got == want for got, want, length in zip(self.strides, expected, self.shape, strict=True) if length > 1
        )

    def __getitem__(self, key: int | slice | tuple[int | slice, ...]) -> DeviceArray:
        """The view at `key`: an index, or a slice without a step, for each of the leading axes."""
        address, shape, strides = self.address, [], []
        keys = key if isinstance(key, tuple) else (key,)
        for axis, (length, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            part = keys[axis] if axis < len(keys) else slice(None)
            if isinstance(part, slice):
                start, stop, step = part.indices(length)
                if step != 1:
                    raise IndexError(f"axis {axis}: a slice with step {step}; a view has steps of 1")
                address += start * stride
                shape.append(max(stop - start, 0))
                strides.append(stride)
            else:
                if not -length <= part < length:
                    raise IndexError(f"axis {axis}: index {part}, its length is {length}")
                address += part % length * stride
        return DeviceArray(address, tuple(shape), self.dtype, tuple(strides))
