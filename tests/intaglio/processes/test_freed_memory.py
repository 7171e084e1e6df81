"""Freed memory goes back to the system."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
from intaglio.processes.freed_memory import return_freed_memory

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

blocks = [bytes(2000) for _ in range(20_000)]
last = blocks.pop()  # above all others
del blocks
kept = resident()
return_freed_memory()
print(kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_memory_below_a_block_in_use_is_returned() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 30_000  # kB of 40,000
