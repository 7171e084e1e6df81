"""Tools can only fail, never affect the run. In real time, as threads are involved."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from event_loops import run

from intaglio.errors import UsageError
from intaglio.runtime.agents.loops.agent import AgentLimits
from intaglio.runtime.agents.loops.call_scheduler import CallScheduler
from intaglio.runtime.agents.plan.plan import Call
from intaglio.runtime.agents.run.observation import Observation
from intaglio.runtime.agents.tools import result
from intaglio.runtime.agents.tools.result import MOST_CHARACTERS
from intaglio.runtime.agents.tools.tool import Tool

NO_PARAMETERS = {"type": "object", "properties": {}}


def tool(function: Callable[..., Any], **options: Any) -> Tool:
    return Tool("tool", "", NO_PARAMETERS, function, **options)


async def observed(*tools: Tool, limits: AgentLimits | None = None) -> list[Observation]:
    """Call each tool once, at the same time."""
    named = {f"tool{number}": each for number, each in enumerate(tools, 1)}
    began = time.monotonic()
    async with CallScheduler(named, limits or AgentLimits(), None, lambda: time.monotonic() - began) as scheduler:
        for number, name in enumerate(named, 1):
            scheduler.add(Call(number, name))
        observations = await scheduler.wait()
    return [observations[number] for number in range(1, len(tools) + 1)]


def both_ways(function: Callable[[], Any]) -> list[Tool]:
    """The function in a thread, and as an `async def`."""

    async def in_loop() -> Any:
        return function()

    return [tool(function), tool(in_loop)]


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class WrongTextError(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class Base(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "expected_error"),
    [
        (ValueError("first\n  second"), "ValueError: first second"),
        (ValueError(), "ValueError"),
        (UsageError("query: expected a text."), "query: expected a text."),
        (SystemExit(3), "SystemExit: 3"),
        (Base("odd"), "Base: odd"),
        (GeneratorExit(), "GeneratorExit"),
        (MemoryError(), "MemoryError"),
        (asyncio.CancelledError(), "CancelledError"),
        (concurrent.futures.CancelledError(), "CancelledError"),
        (TimeoutError("theirs"), "TimeoutError: theirs"),
        (UnreadableError(), "UnreadableError: its message cannot be read"),
        (WrongTextError(), "WrongTextError: its message cannot be read"),
        (ExceptionGroup("two", [ValueError(), TypeError()]), "ExceptionGroup: two (2 sub-exceptions)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_any_exception_of_a_tool_is_a_failed_observation(error: BaseException, expected_error: str) -> None:
    def fails() -> None:
        raise error

    for observation in run(observed(*both_ways(fails))):
        assert (observation.status, observation.value, observation.attempts) == ("failed", None, 1)
        assert (observation.error or "").startswith(expected_error)
        assert "\n" not in (observation.error or "")


@pytest.mark.parametrize("error", [StopIteration(1), KeyboardInterrupt()], ids=["StopIteration", "KeyboardInterrupt"])
def test_thread_may_raise_stop_iteration_and_base_exceptions(error: BaseException) -> None:
    def fails() -> None:
        raise error

    (observation,) = run(observed(tool(fails)))
    assert observation.status == "failed"
    assert (observation.error or "").startswith(type(error).__name__)


def test_ctrl_c_during_an_async_tool_ends_the_run() -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(observed(tool(interrupted)))


def test_long_messages_are_truncated() -> None:
    def fails() -> None:
        raise ValueError("word " * 100_000)

    (observation,) = run(observed(tool(fails)))
    assert len(observation.error or "") < 600


class NoText:
    def __str__(self) -> str:
        raise SystemExit


def holding_itself() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def nested() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("value", "expected_error"),
    [
        (lambda: "a" * (MOST_CHARACTERS + 1), "larger than"),
        (lambda: ["a" * 1000] * 10_000, "larger than"),
        (lambda: range(10**9), ""),
        (lambda: [0] * (MOST_CHARACTERS + 1), "larger than"),
        (lambda: b"a" * (MOST_CHARACTERS + 1), "larger than"),
        (nested, "cannot be written as text (RecursionError"),
        (lambda: [NoText()], "cannot be written as text (SystemExit)"),
        (lambda: {(1, 2): 3}, "cannot be written as text (TypeError"),
        (lambda: 10**5000, "cannot be written as text (ValueError"),
        (lambda: (each for each in "abc"), "holds a generator, which has no text"),
        (lambda: {"found": [object()]}, "holds a object, which has no text"),
    ],
    ids=["string", "shared", "range", "list", "bytes", "deep", "str", "keys", "int", "generator", "object"],
)
def test_values_too_large_or_without_text_fail(value: Callable[[], Any], expected_error: str) -> None:
    for observation in run(observed(*both_ways(value))):
        if expected_error:
            assert observation.status == "failed" and expected_error in (observation.error or "")
        else:
            assert (observation.status, observation.text) == ("done", '"range(0, 1000000000)"')


def test_value_that_holds_itself_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "MOST_CHARACTERS", 10_000)  # the walk around the circle ends there
    for observation in run(observed(*both_ways(holding_itself))):
        assert observation.status == "failed" and "holds itself" in (observation.error or "")


@pytest.mark.parametrize("value", [None, True, 1.5, "text", [1, {"a": None}], {}, ()])
def test_values_are_returned_unchanged(value: Any) -> None:
    for observation in run(observed(*both_ways(lambda: value))):
        assert observation.status == "done" and observation.value is value


def test_hanging_threads_do_not_occupy_other_slots() -> None:
    released, names = threading.Event(), set()

    def hangs() -> None:
        names.add(threading.current_thread().name)
        released.wait()

    async def main() -> list[Observation]:
        hanging = [tool(hangs, timeout=0.1, limit=1) for _ in range(20)]
        quick = [tool(lambda: "done") for _ in range(20)]
        return await observed(*hanging, *quick, limits=AgentLimits(parallel=2))

    began = time.monotonic()
    observations = run(main())
    assert time.monotonic() - began < 5
    assert [each.status for each in observations] == ["failed"] * 20 + ["done"] * 20
    assert {each.error for each in observations[:20]} == {"no result within 0.1 s"}
    assert names == {"tool tool"}
    released.set()
    no_threads_left()


def no_threads_left() -> None:
    deadline = time.monotonic() + 5
    while left := [each.name for each in threading.enumerate() if each.name.startswith("tool ")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_hanging_thread_can_be_retried() -> None:
    released, calls = threading.Event(), []

    def hangs_first() -> str:
        calls.append(1)
        if len(calls) == 1:
            released.wait()
        return f"call {len(calls)}"

    (observation,) = run(observed(tool(hangs_first, timeout=0.2, attempts=2)))
    released.set()
    assert (observation.value, observation.attempts) == ("call 2", 2)


def test_cancelled_run_leaves_no_thread_of_a_returning_tool() -> None:
    began = threading.Event()

    def slow() -> None:
        began.set()
        time.sleep(0.2)

    async def main() -> None:
        task = asyncio.create_task(observed(tool(slow)))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())
    no_threads_left()


HANGING_PROCESS = """
import asyncio, time
from intaglio.runtime.agents.loops.agent import AgentLimits
from intaglio.runtime.agents.plan.plan import Call
from intaglio.runtime.agents.loops.call_scheduler import CallScheduler
from intaglio.runtime.agents.tools.tool import Tool

async def main():
    tools = {name: Tool(name, "", {"type": "object"}, lambda seconds=seconds: time.sleep(seconds), timeout=0.1)
             for name, seconds in (("hangs", 600), ("late", 0.4))}
    async with CallScheduler(tools, AgentLimits(), None, time.monotonic) as scheduler:
        scheduler.add(Call(1, "hangs"))
        scheduler.add(Call(2, "late"))
        print([each.error for each in (await scheduler.wait()).values()])

asyncio.run(main())
time.sleep(0.6)  # "late" comes back to a loop that is closed
"""


def test_process_exits_with_hanging_and_late_threads() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING_PROCESS], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['no result within 0.1 s', 'no result within 0.1 s']\n"


def test_context_variables_reach_tools_and_stay_local() -> None:
    user = contextvars.ContextVar("user", default="nobody")

    def who() -> str:
        name = user.get()
        user.set("the tool")
        return name

    async def main() -> list[Observation]:
        user.set("ada")
        observations = await observed(*both_ways(who), *both_ways(who))
        assert user.get() == "ada"
        return observations

    assert [each.value for each in run(main())] == ["ada"] * 4


def test_awaitable_of_a_plain_function_is_awaited_in_the_loop() -> None:
    async def answer(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return threading.current_thread().name

    in_time, late = run(observed(tool(lambda: answer(0)), tool(lambda: answer(60), timeout=0.1)))
    assert in_time.value == "MainThread"
    assert late.error == "no result within 0.1 s"


def test_late_coroutine_is_closed() -> None:
    async def answer() -> None:
        raise AssertionError("too late to be run")

    def late() -> Any:
        time.sleep(0.3)
        return answer()

    async def main() -> list[Observation]:
        observations = await observed(tool(late, timeout=0.1))
        await asyncio.sleep(0.5)
        return observations

    (observation,) = run(main())
    assert observation.error == "no result within 0.1 s"
    no_threads_left()


def test_thread_creation_error_fails_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        (observation,) = run(observed(tool(lambda: 1)))
    assert (observation.status, observation.error) == ("failed", "RuntimeError: can't start new thread")
