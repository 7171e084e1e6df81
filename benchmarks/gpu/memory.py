"""The memory of a GPU, global or shared, as bytes; accesses outside of the arrays and misaligned ones are errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

POISON = 0xA5
BANKS = 32  # of shared memory, each four bytes wide


class Memory:
    """Arrays at addresses of their own, with space that belongs to none between them; or `shared` bytes of a block."""

    def __init__(self, shared: int = 0) -> None:
        self.bytes = np.full(shared or 1 << 16, POISON, np.uint8)
        self.used: Mask = np.full(len(self.bytes), shared > 0)

    def put(self, array: npt.NDArray[Any]) -> int:
        """Copies an array behind those that are there; returns its address, a multiple of 256."""
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        start = len(self.bytes)
        size = len(data) + 512 - len(data) % 256
        self.bytes = np.concatenate([self.bytes, np.pad(data, (0, size - len(data)), constant_values=POISON)])
        self.used = np.concatenate([self.used, np.arange(size) < len(data)])
        return start

    def get(self, address: int, dtype: npt.DTypeLike, shape: Sequence[int]) -> npt.NDArray[Any]:
        """The array at an address."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.bytes[address : address + count].view(dtype).reshape(shape)

    def places(self, addresses: npt.NDArray[np.uint64], size: int, lanes: Mask) -> Places:
        """The places [lanes, size] of the bytes of the lanes that take part.

        Raises `IndexError` outside of the arrays, and for a misaligned address.
        """
        places: Places = addresses.astype(np.int64)[lanes][:, None] + np.arange(size)
        if (addresses[lanes] % size).any():
            raise IndexError(f"address {addresses[lanes].max():#x}: {size} bytes are not aligned")
        if (places < 0).any() or (places >= len(self.bytes)).any() or not self.used[places].all():
            raise IndexError(f"address {addresses[lanes].max():#x}: outside of the arrays")
        return places


def sectors(places: Places) -> int:
    """How many pieces of 32 bytes of global memory an access [lanes, bytes] touches."""
    return len(np.unique(places // 32))


def wavefronts(places: Places) -> int:
    """The passes that an access [lanes, bytes] of shared memory takes: in each, a bank gives one word of four bytes."""
    lanes = max(4 * BANKS // max(places.shape[1], 4), 1)  # that an access of 8 or 16 bytes serves together
    total = 0
    for first in range(0, len(places), lanes):
        words = np.unique(places[first : first + lanes] // 4)
        total += int(np.bincount(words % BANKS).max())
    return total
