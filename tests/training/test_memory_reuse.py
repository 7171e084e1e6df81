"""Freed memory serves the next array."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import pytest
import torch

from intaglio.training.memory_reuse import memory_reused

BYTES = 96 << 20  # above the 32 MiB from which on glibc maps arrays
# The fields of glibc's struct mallinfo2, from malloc.h.
FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class Use(ctypes.Structure):
    """What malloc holds, in bytes and blocks: `hblkhd` bytes are mapped for one array each, `fordblks` are free."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def use() -> Use:
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is None:
        pytest.skip("needs mallinfo2 of glibc 2.33")
    function.restype = Use
    return function()


def resident() -> int:
    """Bytes of this process in main memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def mapped() -> int:
    """Bytes mapped anew for an array of `BYTES`."""
    before = use().hblkhd
    array = torch.ones(BYTES, dtype=torch.uint8)
    after = use().hblkhd
    assert array[-1] == 1
    return after - before


def test_the_next_array_takes_the_memory_of_the_last_one() -> None:
    assert mapped() >= BYTES
    with memory_reused():
        assert mapped() == 0
        assert use().fordblks >= BYTES  # kept, for the next array
        kept = resident()
    assert kept - resident() > BYTES / 2  # given back to the system
    assert mapped() >= BYTES
