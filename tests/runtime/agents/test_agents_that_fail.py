"""Tools and servers that hang, raise, and exit while an agent runs: it ends with a clear answer and no tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_checks import Events, answered, nothing_left, statuses, tool_of, tools
from event_loops import run
from mcp_servers import OURS, http_server, script
from scripted_model import ScriptedModel, call
from scripted_server import CUT, SILENCE, STREAM, chunk, error, event, scripted, status, stream

from intaglio.runtime.agents.loops.agent import Agent, AgentLimits, AgentResult
from intaglio.runtime.agents.loops.function_calling import FunctionCalling
from intaglio.runtime.agents.loops.llm_compiler import LLMCompiler
from intaglio.runtime.agents.loops.react import ReAct
from intaglio.runtime.agents.models.server_model import ServerModel
from intaglio.runtime.agents.run.events import TaskStarted
from intaglio.runtime.agents.tools.mcp_client import mcp_tools
from intaglio.runtime.agents.tools.tool import Tool

PLAN = '1. bad()\n2. search("b")\n3. echo($1)\n4. join()'


def agents(bad: Tool, limits: AgentLimits | None = None) -> list[Agent]:
    """Each kind of agent, whose model calls `bad`."""
    given = {**tools(0.05), "bad": bad}
    return [
        LLMCompiler(ScriptedModel([PLAN, "Answer: over"]), given, limits),
        LLMCompiler(ScriptedModel([PLAN, "Answer: over"]), given, limits, streaming=False),
        ReAct(ScriptedModel(["1. bad()", '2. search("b")', "3. echo($1)", "Answer: over"]), given, limits),
        FunctionCalling(
            ScriptedModel([[call("bad", "{}"), call("search", '{"text": "b"}', "c2")], "over"]), given, limits
        ),
    ]


async def hang() -> None:
    await asyncio.Event().wait()


async def stubborn() -> None:
    for _ in range(2):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def leave() -> None:
    raise SystemExit(3)


async def cancel() -> None:
    raise asyncio.CancelledError


def block() -> None:
    time.sleep(0.6)


def leave_thread() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (hang, "no result within 0.4 s"),
        (stubborn, "no result within 0.4 s"),
        (block, "no result within 0.4 s"),
        (leave, "SystemExit: 3"),
        (cancel, "CancelledError"),
        (leave_thread, "KeyboardInterrupt"),
        (lambda: {1j: 2}, "the result cannot be written as text"),
        (lambda: {}["missing"], "KeyError: 'missing'"),  # type: ignore[typeddict-item]
    ],
)
def test_hanging_or_raising_tool_fails_alone(function: Callable[[], Any], message: str) -> None:
    # Only a tool that reaches its limit has a short one: a busy machine can keep the event loop itself for that long.
    bad = replace(tool_of(function, "bad"), timeout=0.4 if "within" in message else None)
    for agent in agents(bad)[: 1 if function is stubborn else None]:  # it takes 2 s to end
        result = run(answered(agent))
        assert (result.answer, result.complete) == ("over", True)
        assert result.observations[2].value == "found b"
        assert statuses(result)[1] == "failed" and message in str(result.observations[1].error)
        assert statuses(result).get(3, "skipped") == "skipped"  # function calling makes two calls


@pytest.mark.parametrize("function", [hang, stubborn])
def test_cancelled_run_cancels_its_async_tools(function: Callable[[], Any]) -> None:
    async def main() -> None:
        for agent in agents(tool_of(function, "bad"))[: 1 if function is stubborn else None]:
            task = asyncio.create_task(agent.run("Why?"))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with nothing_left():
        run(main(), 40)


def test_cancelled_run_does_not_wait_for_a_blocking_tool() -> None:
    gate = threading.Event()

    async def main() -> float:
        longest = 0.0
        for agent in agents(tool_of(lambda: gate.wait(30), "bad")):
            task = asyncio.create_task(agent.run("Why?"))
            await asyncio.sleep(0.1)
            began = time.perf_counter()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            longest = max(longest, time.perf_counter() - began)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        return longest

    before = set(threading.enumerate())
    assert run(main()) < 2
    left = set(threading.enumerate()) - before
    assert {(each.name, each.daemon) for each in left} == {("tool bad", True)}  # they do not block the exit
    gate.set()
    for each in left:
        each.join(5)
        assert not each.is_alive()


def test_time_limit_ends_a_run_with_a_blocking_tool() -> None:
    gate = threading.Event()
    for agent in agents(tool_of(lambda: gate.wait(30), "bad"), AgentLimits(max_seconds=0.5)):
        result = run(answered(agent))
        assert "the run reached its limit of 0.5 s" in result.answer and not result.complete
        assert result.seconds < 3
    gate.set()


@pytest.mark.proof
def test_mcp_server_exit_during_a_run(tmp_path: Path) -> None:
    plan = '1. echo("a")\n2. die()\n3. echo("$1")\n4. echo($2)\n5. join()'

    async def main() -> AgentResult:
        async with mcp_tools(script(tmp_path, "ours.py", OURS), call_seconds=5) as server:
            given = {tool.name: tool for tool in server.tools}
            result = await LLMCompiler(ScriptedModel([plan, "Answer: partly"]), given).run("Why?")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with nothing_left():
        result = run(main(), 40)
    assert (result.answer, result.complete) == ("partly", True)
    assert result.observations[2].status == "failed" and result.observations[4].status == "skipped"
    assert str(result.observations[2].error).startswith("die: ")
    assert result.seconds < 20


def test_mcp_server_killed_during_tool_calls(tmp_path: Path) -> None:
    async def main(url: str, process: Any) -> AgentResult:
        async def kill() -> str:
            await asyncio.sleep(0.3)
            process.kill()
            process.wait()
            return "killed"

        async with mcp_tools(url, call_seconds=8) as server:
            given = {**{tool.name: tool for tool in server.tools}, "kill": tool_of(kill)}
            plan = '1. later(30)\n2. kill()\n3. echo("$2")\n4. join()'
            result = await LLMCompiler(ScriptedModel([plan, "Answer: partly"]), given).run("Why?")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with http_server(tmp_path) as (url, process):
        result = run(main(url, process), 40)
    assert (result.answer, result.complete) == ("partly", True)
    assert statuses(result) == {1: "failed", 2: "done", 3: "failed"}
    assert str(result.observations[1].error).startswith("later: ")
    assert result.seconds < 30


REAL_PLAN = [chunk(each) for each in ("Thought: a\n1. sea", 'rch("Asia")\n2. search("Afr', 'ica")\n3. join()')]
USED = event({"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 5}})


def on_server(
    *answers: Any, seconds: float = 20.0, kind: Callable[..., Agent] = LLMCompiler, **options: Any
) -> tuple[AgentResult, Events]:
    """Run an agent against a server with these answers."""
    events = Events()

    async def main() -> AgentResult:
        async with scripted(*answers) as running:
            async with ServerModel(running.url, "m", timeout=2.0, retries=0) as model:
                agent = kind(model, tools(0.05), AgentLimits(max_seconds=seconds), **options)
                result = await agent.run("Why?", events)
            for _ in range(100):
                if not running.open and asyncio.all_tasks() == {asyncio.current_task()}:
                    return result
                await asyncio.sleep(0.01)
            raise AssertionError(f"{running.open} connections, {asyncio.all_tasks()}")

    return run(main(), 40), events


def test_server_answers() -> None:
    result, _ = on_server(
        stream(*REAL_PLAN, chunk(reason="stop"), USED), stream(chunk("Answer: by 14"), chunk(reason="stop"), USED)
    )
    assert (result.answer, result.complete) == ("by 14", True)
    assert (result.usage.prompt, result.usage.calls) == (60, 2)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([STREAM, *REAL_PLAN[:2], 0.3, CUT], "No answer: model server http://127.0.0.1"),
        ([STREAM, *REAL_PLAN[:2], SILENCE], "No answer: model server http://127.0.0.1"),
        ([STREAM, *REAL_PLAN[:2], b"zzzz\r\n"], "No answer: model server http://127.0.0.1"),
        ([STREAM, chunk('1. search("Asia")\n'), 0.3, event(b"{{{")], "No answer: model server http://127.0.0.1"),
    ],
)
def test_server_disconnect_during_a_plan(answer: Any, message: str) -> None:
    result, events = on_server(answer)
    assert result.answer.startswith(message) and not result.complete
    assert len(events.of(TaskStarted)) == 1
    assert result.seconds < 10


@pytest.mark.parametrize("answer", [error(500, "out of memory"), status(200, {}), [SILENCE], [CUT], error(401, "no")])
@pytest.mark.parametrize("place", [0, 1])
def test_unresponsive_server(answer: Any, place: int) -> None:
    plan = stream(*REAL_PLAN, chunk(reason="stop"))
    result, _ = on_server(*[plan, answer][1 - place :])
    assert result.answer.startswith("No answer: model server http://127.0.0.1") and not result.complete
    assert "\n" not in result.answer
    assert statuses(result) == ({1: "done", 2: "done"} if place else {})


SEARCH = {"index": 0, "id": "a", "type": "function", "function": {"name": "search", "arguments": '{"text": "Asia"}'}}
TURNS: dict[Callable[..., Agent], Any] = {
    ReAct: stream(chunk('1. search("Asia")', "stop")),
    FunctionCalling: stream(chunk(tool_calls=[SEARCH]), chunk(reason="tool_calls")),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize("answer", [[STREAM, chunk("1. sea"), 0.3, CUT], [STREAM, chunk("1. sea"), SILENCE], [SILENCE]])
def test_server_exit_ends_other_agents_too(kind: Callable[..., Agent], answer: Any) -> None:
    result, events = on_server(TURNS[kind], answer, kind=kind)
    assert "model server http://127.0.0.1" in result.answer and not result.complete
    assert statuses(result) == {1: "done"} and len(events.of(TaskStarted)) == 1
    cut_off = kind is FunctionCalling and len(answer) > 1  # there, any text may be the answer
    assert result.answer.startswith("1. sea [The answer is not" if cut_off else "No answer: ") and result.seconds < 10


def test_endless_stream_is_stopped_after_the_plan_or_by_timeout() -> None:
    result, _ = on_server([STREAM, *REAL_PLAN, *[chunk("more ")] * 50, SILENCE], stream(chunk("Answer: 1", "stop")))
    assert (result.answer, result.complete) == ("1", True)
    began = time.perf_counter()
    result, _ = on_server([STREAM, *[step for _ in range(600) for step in (chunk("Thought: a\n"), 0.02)]], seconds=1.0)
    assert "the run reached its limit of 1 s" in result.answer and time.perf_counter() - began < 8
