"""Running a coroutine: hanging tasks do not block the end and are reported; other tasks are awaited."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from intaglio.processes import async_run

STOP = threading.Event()


async def stubborn() -> None:
    """Ignore every cancellation until the end of the test."""
    while not STOP.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def leaves_a_task() -> int:
    asyncio.current_task().kept = asyncio.create_task(stubborn())  # type: ignore[union-attr]
    await asyncio.sleep(0)
    return 7


async def leaves_a_thread_of_the_executor() -> int:
    asyncio.get_running_loop().run_in_executor(None, STOP.wait)
    return 7


async def leaves_a_thread() -> int:
    threading.Thread(target=STOP.wait).start()
    return 7


async def leaves_nothing() -> int:
    await asyncio.to_thread(time.sleep, 0)
    asyncio.current_task().kept = asyncio.create_task(asyncio.sleep(60))  # type: ignore[union-attr]
    return 7


@pytest.mark.parametrize(
    ("main", "left"),
    [(leaves_a_task, 1), (leaves_a_thread_of_the_executor, 1), (leaves_a_thread, 1), (leaves_nothing, 0)],
)
def test_hanging_tasks_do_not_block_the_end_and_are_reported(
    main: Callable[[], Coroutine[Any, Any, int]], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_run, "_left", kept := [])
    STOP.clear()
    began = time.monotonic()
    try:
        assert async_run.run(main(), grace=0.3) == 7
        assert (len(kept), async_run.is_left()) == (left, bool(left))
        assert time.monotonic() - began < 5
    finally:
        STOP.set()
        for each in kept:
            if isinstance(each, asyncio.Task):
                each._log_destroy_pending = False  # type: ignore[attr-defined]
