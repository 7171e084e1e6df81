"""How many threads the work of this process takes: as many as it has processors, or as few as it is told.

NumPy's BLAS and LAPACK divide single products among threads that wait for each other in loops. On a machine that does
anything else meanwhile the one that waits takes the processor from the one it waits for: Cholesky factors of 576 rows
took 60 times as long on two busy processors as with one thread. So heavy work runs in `bounded`, where BLAS has one
thread, and goes over its own blocks in `in_parallel`, whose threads sleep while they wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from intaglio.errors import UsageError

OPTION = "--threads"

Item = TypeVar("Item")
Result = TypeVar("Result")

_most: ContextVar[int | None] = ContextVar("most", default=None)


def usable_threads() -> int:
    """The threads that work may take: what `bounded` says, or the processors that this process may use."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _most.get() or processors


@contextmanager
def bounded(threads: int | None) -> Iterator[None]:
    """Let what runs inside take at most `threads`, by default all, and BLAS one in each of them.

    Engines that are opened inside take as many. Raises `UsageError` for fewer than one.
    """
    from threadpoolctl import threadpool_limits

    if threads is not None and threads < 1:
        raise UsageError(f"{OPTION} {threads}: expected at least 1.")
    token = _most.set(threads or _most.get())
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        _most.reset(token)


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> list[Result]:
    """What `work`, which spends its time outside of Python (in NumPy, in C), gives for each of `items`, in order.

    `threads`: by default `usable_threads`.
    """
    items = list(items)
    workers = min(threads or usable_threads(), len(items))
    if workers < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))
