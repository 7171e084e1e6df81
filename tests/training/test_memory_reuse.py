"""The next array reuses freed memory."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from intaglio.training.memory_reuse import memory_reused

BYTES = 96 << 20  # above the 32 MiB from which on glibc maps arrays
# The fields of glibc's struct mallinfo2, from malloc.h.
FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class Use(ctypes.Structure):
    """The memory of malloc, in bytes and blocks: `hblkhd` bytes are mapped for single arrays, `fordblks` are free."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def use() -> Use:
    function = ctypes.CDLL(None).mallinfo2
    function.restype = Use
    return function()


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def mapped() -> int:
    """Newly mapped bytes for an array of `BYTES`."""
    before = use().hblkhd
    array = torch.ones(BYTES, dtype=torch.uint8)
    after = use().hblkhd
    assert array[-1] == 1
    return after - before


def check_reuse() -> None:
    assert mapped() >= BYTES
    with memory_reused():
        assert mapped() == 0
        assert use().fordblks >= BYTES  # kept for the next array
        kept = resident()
    assert kept - resident() > BYTES / 2  # returned to the system
    assert mapped() >= BYTES


@pytest.mark.proof
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs mallinfo2 of glibc 2.33")
def test_next_array_reuses_the_memory_of_the_last_one() -> None:
    # In a separate process: after a failed allocation, as in other tests, glibc moves the thread permanently to an
    # arena of at most 64 MiB, and maps larger arrays regardless of its settings.
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


if __name__ == "__main__":
    check_reuse()
