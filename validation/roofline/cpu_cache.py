"""The size of this machine's processor caches, as reported by the system."""

from __future__ import annotations

import os
import re
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def last_level_bytes(cpus: Path = CPUS) -> int | None:
    """The total bytes of the last-level caches that this process may use; None if the system does not report them.

    A cache shared by several processors counts once.
    """
    caches: dict[tuple[int, str], int] = {}  # level, the processors that share it -> bytes
    for cpu in os.sched_getaffinity(0):
        for index in (cpus / f"cpu{cpu}" / "cache").glob("index*"):
            try:
                level, shared, size = (
                    (index / name).read_text().strip() for name in ("level", "shared_cpu_list", "size")
                )
            except OSError:
                continue
            if found := re.fullmatch(r"(\d+)([KMG]?)", size):
                caches[int(level), shared] = int(found[1]) * UNITS[found[2]]
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None
