"""What a draft model has to be, and what it runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.tokenizer import read_backend

THREAD_BYTES = 8 << 20  # weights that are worth a processor thread: less is read sooner than threads are woken


def check_draft(small: Bundle, large: Bundle) -> None:
    """Refuse a draft model of another kind, or with another vocabulary, than the model it drafts for.

    Raises `UsageError`.
    """
    what = f"draft {small.path}"
    check_task(what, small.manifest.task, large)
    check_vocabulary(what, read_backend(small).get_vocab(), large)


def check_task(what: str, task: str, large: Bundle) -> None:
    """Raise `UsageError` if `task`, that of the draft model `what`, is not that of the model it drafts for."""
    if task != large.manifest.task:
        raise UsageError(
            f"{what}: its task is {task!r}, that of {large.path} is {large.manifest.task!r}. "
            "Take a draft model of the same kind."
        )


def check_vocabulary(what: str, vocabulary: Mapping[str, int], large: Bundle) -> None:
    """Raise `UsageError` if the tokens of the draft model `what` are not those of the model it drafts for."""
    expected = read_backend(large).get_vocab()
    if vocabulary != expected:
        differing = sum(expected.get(token) != number for token, number in vocabulary.items())
        raise UsageError(
            f"{what}: its vocabulary is not that of {large.path} ({len(vocabulary)} and {len(expected)} tokens, "
            f"{differing} differ). Take a draft model of the same family, with the same tokenizer."
        )


def draft_threads(bundle: Bundle, threads: int | None, part: float = 1.0) -> int:
    """Processor threads for a draft model, at most `threads`: one for every `THREAD_BYTES` of its weights.

    `part`: of the weights in `bundle`, what the draft model is.
    Threads of two models wait in loops for their turns, and take the processor from each other.
    """
    size = sum(record.bytes for name, record in bundle.manifest.files.items() if not name.startswith("engines/"))
    return min(threads or len(os.sched_getaffinity(0)), 1 + int(part * size) // THREAD_BYTES)
