"""How much memory this process may have: that of the machine, or the limit of its container."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup/memory.max")  # control groups of version 2; "max" without a limit


@cache
def memory_limit() -> int | None:
    """Bytes; None where the system does not say."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    try:
        return min(machine, int(CONTAINER.read_text()))
    except (OSError, ValueError):
        return machine
