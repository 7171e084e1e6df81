"""The number of threads of this process: the number of its processors, or fewer on request.

NumPy's BLAS and LAPACK divide single products among threads that busy-wait for each other. On a loaded machine, a
waiting thread takes processor time from the one it waits for: Cholesky factors of 576 rows took 60 times as long on two
busy processors as with one thread. So heavy work runs in `bounded`, where BLAS has one thread, and processes its own
blocks in `in_parallel`, whose threads sleep while they wait.
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
MAX_THREADS = 1024

Item = TypeVar("Item")
Result = TypeVar("Result")

_most: ContextVar[int | None] = ContextVar("most", default=None)


def usable_threads() -> int:
    """The number of threads to use: that of `bounded`, or the number of processors available to this process."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _most.get() or processors


@contextmanager
def bounded(threads: int | None) -> Iterator[None]:
    """Limit the code inside to `threads` threads, by default one per processor, and BLAS to one in each of them.

    Engines opened inside use the same number. Raises `UsageError` for fewer than one, or more than `MAX_THREADS`.
    """
    from threadpoolctl import threadpool_limits

    with limited(threads), threadpool_limits(1, user_api="blas"):
        yield


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """As `bounded`, without a limit for BLAS: for engines that are opened and run inside."""
    check_threads(threads)
    token = _most.set(threads or _most.get())
    try:
        yield
    finally:
        _most.reset(token)


def check_threads(threads: int | None) -> None:
    """Raise `UsageError` for an unreasonable number of processor threads."""
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"{OPTION} {threads}: expected 1 to {MAX_THREADS}.")


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> list[Result]:
    """The results of `work` for each of `items`, in order; `work` should spend its time in NumPy or C, not Python.

    `threads`: by default `usable_threads`.
    """
    items = list(items)
    workers = min(threads or usable_threads(), len(items))
    if workers < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))
