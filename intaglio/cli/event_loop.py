"""Running a coroutine as a command: an interrupt cancels it, so that it can end its servers, calls and files."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from intaglio import interrupts

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in a loop of its own and return its result.

    Ctrl-C and the other signals of `interrupts` cancel it, and are raised as `Interrupted` once it has cleaned up; a
    second one does not wait for that.
    """
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    asked: list[int] = []

    async def interruptible() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "it runs as a task"

        def stop(number: int) -> None:
            asked.append(number)
            for each, handler in before.items():
                loop.remove_signal_handler(each)
                signal.signal(each, handler)
            task.cancel()

        for number in before:
            loop.add_signal_handler(number, stop, number)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if not asked:
            raise
        raise interrupts.Interrupted(asked[0]) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
