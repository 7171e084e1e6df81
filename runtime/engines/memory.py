"""The memory of the buffers that an engine is bound to: the host's, or a device's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


class Buffer(Protocol):
    """The common interface of a NumPy array and a `DeviceArray`. Slices are views, in the same memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of every axis."""

    @property
    def dtype(self) -> Any:
        """The NumPy dtype of an element."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""

    def __getitem__(self, key: Any, /) -> Any: ...


class Memory(ABC):
    """Allocates, fills and copies buffers. Operations run in order, and before the engine's next run."""

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Buffer:
        """A new contiguous buffer of zeros."""

    @abstractmethod
    def fill(self, buffer: Buffer, value: int) -> None:
        """Set every byte of a contiguous view to `value`."""

    @abstractmethod
    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copy `source` to `target`, which do not overlap; either may be in host memory.

        Both have the same dtype and number of axes; an axis of length 1 of the source is broadcast.
        """

    @abstractmethod
    def descending_windows(self, line: Buffer, width: int) -> Buffer:
        """Every window of `width` elements of `line` [elements] as a row of a view, the last window first."""

    @abstractmethod
    def release(self, buffer: Buffer) -> None:
        """Free a buffer returned by `zeros`."""


class HostMemory(Memory):
    """The host's memory: buffers are NumPy arrays, which Python frees when nothing refers to them."""

    def zeros(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Buffer:
        """See `Memory`."""
        return np.zeros(shape, dtype)

    def fill(self, buffer: Buffer, value: int) -> None:
        """See `Memory`."""
        buffer[...].view(np.uint8)[...] = value

    def copy(self, target: Buffer, source: Buffer) -> None:
        """See `Memory`."""
        target[...] = source  # type: ignore[index]

    def descending_windows(self, line: Buffer, width: int) -> Buffer:
        """See `Memory`."""
        return np.lib.stride_tricks.sliding_window_view(line[:], width)[::-1]

    def release(self, buffer: Buffer) -> None:
        """See `Memory`."""
