"""What a draft model has to be, and what it runs on."""

from __future__ import annotations

import os

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.tokenizer import read_backend

THREAD_BYTES = 8 << 20  # weights that are worth a processor thread: less is read sooner than threads are woken


def check_draft(small: Bundle, large: Bundle) -> None:
    """Refuse a draft model of another kind, or with another vocabulary, than the model it drafts for.

    Raises `UsageError`.
    """
    if small.manifest.task != large.manifest.task:
        raise UsageError(
            f"draft {small.path}: its task is {small.manifest.task!r}, that of {large.path} is "
            f"{large.manifest.task!r}. Take a draft model of the same kind."
        )
    ours, theirs = (read_backend(bundle).get_vocab() for bundle in (small, large))
    if ours != theirs:
        differing = sum(theirs.get(token) != number for token, number in ours.items())
        raise UsageError(
            f"draft {small.path}: its vocabulary is not that of {large.path} ({len(ours)} and {len(theirs)} tokens, "
            f"{differing} differ). Take a draft model of the same family, with the same tokenizer."
        )


def draft_threads(bundle: Bundle, threads: int | None) -> int:
    """Processor threads for a draft model, at most `threads`: one for every `THREAD_BYTES` of its weights.

    Threads of two models wait in loops for their turns, and take the processor from each other.
    """
    size = sum(record.bytes for name, record in bundle.manifest.files.items() if not name.startswith("engines/"))
    return min(threads or len(os.sched_getaffinity(0)), 1 + size // THREAD_BYTES)
