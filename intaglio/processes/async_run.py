"""Running a coroutine to its end, even if tasks and threads that it started ignore that they should end."""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # every command asks `is_left` at its end, few run a loop
    import asyncio

Result = TypeVar("Result")
GRACE = 2.0  # seconds for tasks that were cancelled, and for threads

_left: list[object] = []  # tasks and threads that still run


def run(main: Coroutine[Any, Any, Result], grace: float = GRACE) -> Result:
    """Do what `asyncio.run` does, but wait at most `grace` seconds for tasks, and for threads, that are left."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    threads = set(threading.enumerate())
    loop, executor = asyncio.new_event_loop(), ThreadPoolExecutor(thread_name_prefix="asyncio")
    loop.set_default_executor(executor)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _end(loop, grace)
        finally:
            asyncio.set_event_loop(None)
            executor.shutdown(wait=False, cancel_futures=True)
            loop.close()
        _join([each for each in threading.enumerate() if each not in threads and not each.daemon], grace)


def is_left() -> bool:
    """Whether something that ignores that it should end would hold up the end of the program."""
    return bool(_left)


def _end(loop: asyncio.AbstractEventLoop, grace: float) -> None:
    import asyncio

    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        done, ignoring = loop.run_until_complete(asyncio.wait(tasks, timeout=grace))
        for task in done:
            if not task.cancelled():
                task.exception()  # it was read, so it is not logged
        _left.extend(ignoring)
    if not _left:  # an asynchronous generator of a task that goes on cannot be closed
        with suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), grace))


def _join(threads: list[threading.Thread], grace: float) -> None:
    until = time.monotonic() + grace
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
        if thread.is_alive():
            _left.append(thread)
