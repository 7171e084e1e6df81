"""The number of CPU threads of a draft model."""

from __future__ import annotations

import os

from intaglio.bundle.bundle import Bundle

THREAD_BYTES = 8 << 20  # weights per CPU thread: reading fewer bytes takes less time than waking a thread


def draft_threads(bundle: Bundle, threads: int | None, part: float = 1.0) -> int:
    """Return the CPU threads for a draft model, at most `threads`: one per `THREAD_BYTES` of its weights.

    `part`: fraction of the weights in `bundle` that belong to the draft model. More threads would slow down both
    models: idle threads spin, and take the CPU from the other model.
    """
    size = sum(record.bytes for name, record in bundle.manifest.files.items() if not name.startswith("engines/"))
    return min(threads or len(os.sched_getaffinity(0)), 1 + int(part * size) // THREAD_BYTES)
