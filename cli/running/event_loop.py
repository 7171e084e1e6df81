"""Running a coroutine as a command: an interrupt cancels it, so that it can end its servers, calls and files."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from intaglio import interrupts
from intaglio.processes import async_run

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in a loop of its own and return its result.

    Ctrl-C and the other signals of `interrupts` cancel it, and are raised as `Interrupted` once it has cleaned up, for
    which it has `interrupts.LONGEST_END` seconds; a second one ends the program at once.
    """
    asked: list[int] = []

    async def interruptible() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "it runs as a task"

        def stop(number: int) -> None:
            asked.append(number)
            loop.call_soon_threadsafe(task.cancel)

        with interrupts.handled(stop):  # not by the loop, which a tool may block
            return await main

    try:
        return async_run.run(interruptible())
    except asyncio.CancelledError:
        if not asked:
            raise
        raise interrupts.Interrupted(asked[0]) from None
