"""Measure the memory bandwidth of this machine: the limit of every layer whose weights are read once per token."""

from __future__ import annotations

import ctypes
import mmap
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from intaglio.errors import EngineError
from intaglio.plugins import ort

HUGE_PAGE = 1 << 21
STEP = 512  # bytes that the kernel reads per step


class Memory:
    """A block of memory larger than any cache, to be read completely, one part per thread.

    `size`: bytes, a multiple of 2 MiB. Raises `EngineError` without compiled kernels.
    """

    def __init__(self, size: int = 1 << 29) -> None:
        path = ort.library()
        if path is None:
            raise EngineError("memory bandwidth: no compiled kernels. Install a C++ compiler, then intaglio again.")
        self._read = ctypes.CDLL(str(path)).intaglio_read_memory
        self._read.restype = ctypes.c_int64
        self._isa = ort.instruction_set_number()
        self._map = _map(size)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._bytes[:] = 1  # pages that were never written share one physical page

    def read(self, threads: int) -> float:
        """Read all of it once; return bytes per second."""
        each = len(self._bytes) // threads // STEP * STEP
        start = self._bytes.ctypes.data

        def part(index: int) -> int:
            address = ctypes.c_void_p(start + index * each)
            result: int = self._read(self._isa, address, ctypes.c_int64(each))
            return result

        if threads == 1:
            begin = time.perf_counter()
            part(0)
            return each / (time.perf_counter() - begin)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(len, [()] * threads))  # the threads have started
            begin = time.perf_counter()
            list(pool.map(part, range(threads)))
            return each * threads / (time.perf_counter() - begin)


def _map(size: int) -> mmap.mmap:
    """Anonymous memory in large pages if available: the system does not use them for shared memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    return block
