"""Calls tools: once each, within a time limit; no tool can stop the others."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, copy_context
from typing import Any

from intaglio.runtime.agents.tools.result import ToolResult, raised, returned
from intaglio.runtime.agents.tools.tool import Tool

GRACE = 2.0  # seconds that async tools have to clean up after they were cancelled, twice
_log = logging.getLogger(__name__)


class ToolCaller:
    """Calls tools in the running event loop.

    An `async def` runs as a task of the loop. Anything else runs in a daemon thread of its own: a thread cannot be
    stopped, so one that hangs stays until the process ends, but blocks neither other calls nor the exit. A result after
    the timeout is dropped. An awaitable that it returns in time is awaited in the loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: set[_ToolCall] = set()
        self._tasks: set[asyncio.Task[ToolResult]] = set()

    def start(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        seconds: float,
        context: Context,
        on_result: Callable[[ToolResult], None],
    ) -> None:
        """Call `tool` in a copy of `context`. The loop calls `on_result` once, within `seconds`."""
        call = _ToolCall(self, tool, seconds, context.copy(), on_result)
        self._calls.add(call)
        call.start(arguments)

    async def close(self) -> None:
        """Cancel all calls, without calling `on_result`, and wait until the async ones have ended."""
        for call in [*self._calls]:
            call.abandon()
        for _ in range(2):  # a tool may catch the first one by mistake
            if self._tasks:
                _, ignoring = await asyncio.wait(self._tasks, timeout=GRACE)
                for task in ignoring:
                    task.cancel()
        for task in self._tasks:
            _log.warning("%s ignores that it was cancelled; it is left running", task.get_name())


async def call_tool(tool: Tool, arguments: Mapping[str, Any], seconds: float) -> ToolResult:
    """Call one tool, as `ToolCaller` does. Cancelling this cancels the call."""
    caller = ToolCaller()
    result: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
    caller.start(tool, arguments, seconds, copy_context(), result.set_result)
    try:
        return await result
    finally:
        await caller.close()


class _ToolCall:
    """One call of a tool."""

    def __init__(
        self, caller: ToolCaller, tool: Tool, seconds: float, context: Context, on_result: Callable[[ToolResult], None]
    ):
        self._caller, self._tool, self._seconds, self._context = caller, tool, seconds, context
        self._on_result: Callable[[ToolResult], None] | None = on_result
        self._timer = caller._loop.call_later(seconds, self._timed_out)
        self._task: asyncio.Task[ToolResult] | None = None

    def start(self, arguments: Mapping[str, Any]) -> None:
        if inspect.iscoroutinefunction(self._tool.function):
            self._await(self._tool.function, arguments)
            return
        thread = threading.Thread(
            target=self._in_thread, args=(arguments,), name=f"tool {self._tool.name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads; not ended here, as `start` has not returned yet
            self._caller._loop.call_soon(self._end, raised(error))

    def abandon(self) -> None:
        """Drop the result, and cancel what can be cancelled."""
        self._on_result = None
        self._timer.cancel()
        self._caller._calls.discard(self)
        if self._task is not None:
            self._task.cancel()

    def _end(self, result: ToolResult) -> None:
        on_result = self._on_result
        self.abandon()
        if on_result is not None:
            on_result(result)

    def _timed_out(self) -> None:
        self._end(ToolResult(error=f"no result within {self._seconds:g} s"))

    def _await(self, function: Callable[..., Awaitable[Any]], arguments: Mapping[str, Any]) -> None:
        task = self._caller._loop.create_task(
            _awaited(function, arguments), name=f"tool {self._tool.name}", context=self._context
        )
        self._task = task
        self._caller._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[ToolResult]) -> None:
        self._caller._tasks.discard(task)
        if task.cancelled():
            self._end(ToolResult(error="CancelledError: the tool was cancelled"))
        elif (error := task.exception()) is not None:
            self._end(raised(error))
        else:
            self._end(task.result())

    def _in_thread(self, arguments: Mapping[str, Any]) -> None:
        result: ToolResult | Awaitable[Any]
        try:
            value = self._context.run(lambda: self._tool.function(**arguments))
            result = value if inspect.isawaitable(value) else returned(value)
        except BaseException as error:  # SystemExit and KeyboardInterrupt end no more than this call
            result = raised(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the result
            self._caller._loop.call_soon_threadsafe(self._thread_ended, result)

    def _thread_ended(self, result: ToolResult | Awaitable[Any]) -> None:
        if isinstance(result, ToolResult):
            self._end(result)
        elif self._on_result is not None:
            self._await(lambda: result, {})
        elif inspect.iscoroutine(result):
            result.close()


async def _awaited(function: Callable[..., Awaitable[Any]], arguments: Mapping[str, Any]) -> ToolResult:
    try:
        return returned(await function(**arguments))
    except (asyncio.CancelledError, KeyboardInterrupt):  # Ctrl-C comes wherever the loop is
        raise
    except BaseException as error:  # SystemExit would end the loop
        return raised(error)
