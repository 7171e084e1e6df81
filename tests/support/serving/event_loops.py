"""Event loops for tests: with a hard time limit, or with a clock that jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from time_limit import backstop

Result = TypeVar("Result")
SECONDS = 20.0


def run(main: Coroutine[Any, Any, Result], seconds: float = SECONDS) -> Result:
    """Run `main` in real time. The process ends with all stacks if the loop is stuck."""

    async def limited() -> Result:
        async with asyncio.timeout(seconds):
            return await main

    return _guarded(asyncio.Runner(), limited(), 2 * seconds)


def run_in_virtual_time(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` with a clock that stops while anything can run, and otherwise jumps to the next timer.

    Raises `RuntimeError` if `main` waits for something that can no longer happen.
    """
    return _guarded(asyncio.Runner(loop_factory=VirtualTimeLoop), main, SECONDS)


def _guarded(runner: asyncio.Runner, main: Coroutine[Any, Any, Result], seconds: float) -> Result:
    with backstop(seconds), runner:
        return runner.run(main)


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: the time to wait passes immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("Nothing is left that could happen: a hang.")
        self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is simulated; no threads."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Simulated seconds."""
        return self._jumping.now
