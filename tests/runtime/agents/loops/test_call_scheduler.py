"""The call scheduler in simulated time: failures, retries, limits, cancelling, and events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from event_loops import run_in_virtual_time

from intaglio.errors import IntaglioError
from intaglio.runtime.agents.loops.agent import AgentLimits
from intaglio.runtime.agents.loops.call_scheduler import FIRST_BACKOFF, LONGEST_BACKOFF, CallScheduler, backoff
from intaglio.runtime.agents.plan.plan import Call, PlanError, Reference, Template
from intaglio.runtime.agents.run.events import AnyEvent, Observer, TaskEnded, TaskPlanned, TaskStarted
from intaglio.runtime.agents.run.observation import Observation
from intaglio.runtime.agents.tools.caller import GRACE
from intaglio.runtime.agents.tools.tool import Tool

PARAMETERS = {"type": "object", "properties": {"value": {}, "seconds": {"type": "number"}}}


async def wait(value: Any = None, seconds: float = 1.0) -> Any:
    await asyncio.sleep(seconds)
    return value


async def fail(value: Any = None, seconds: float = 1.0) -> None:
    await asyncio.sleep(seconds)
    raise ValueError(f"no {value}")


async def hang(value: Any = None, seconds: float = 1.0) -> None:
    await asyncio.Event().wait()


def tools(**functions: Callable[..., Any] | Tool) -> dict[str, Tool]:
    named = {"wait": wait, "fail": fail, "hang": hang, **functions}
    return {name: each if isinstance(each, Tool) else Tool(name, "", PARAMETERS, each) for name, each in named.items()}


def scheduler_of(
    known: Mapping[str, Tool] | None = None,
    observer: Observer | None = None,
    earlier: Mapping[int, Observation] | None = None,
    **limits: Any,
) -> CallScheduler:
    """A scheduler in the running loop, whose time is the clock."""
    clock = asyncio.get_running_loop().time
    return CallScheduler(known or tools(), AgentLimits(**limits), observer, clock, earlier or {})


def observed(*calls: Call, **options: Any) -> Mapping[int, Observation]:
    async def main() -> Mapping[int, Observation]:
        async with scheduler_of(**options) as scheduler:
            for call in calls:
                scheduler.add(call)
            return await scheduler.wait()

    return run_in_virtual_time(main())


def statuses(observations: Mapping[int, Observation]) -> dict[int, str]:
    return {number: observations[number].status for number in sorted(observations)}


def test_calls_run_while_the_plan_streams() -> None:
    async def main() -> Mapping[int, Observation]:
        async with scheduler_of() as scheduler:
            scheduler.add(Call(1, "wait", ("a", 1.0)))
            await asyncio.sleep(3)  # the planner generates
            scheduler.add(Call(2, "wait", (Reference(1), 2.0)))
            scheduler.add(Call(3, "wait", ("c", 5.0)))
            scheduler.add(Call(4, "wait", (Template((Reference(2), " and ", Reference(1))),)))
            return await scheduler.wait()

    observations = run_in_virtual_time(main())
    assert [observations[number].value for number in (1, 2, 3, 4)] == ["a", "a", "c", "a and a"]
    assert [observations[number].began for number in (1, 2, 3, 4)] == [0, 3, 3, 5]
    assert [observations[number].ended for number in (1, 2, 3, 4)] == [1, 5, 8, 6]
    assert observations[4].arguments == {"value": "a and a"}


def test_calls_can_be_added_after_a_wait() -> None:
    async def main() -> list[dict[int, str]]:
        async with scheduler_of() as scheduler:
            assert await scheduler.wait() == {}
            scheduler.add(Call(1, "wait"))
            first = statuses(await scheduler.wait())
            scheduler.add(Call(2, "wait", (Reference(1),)))
            assert dict(scheduler.observations).keys() == {1}
            return [first, statuses(await scheduler.wait())]

    assert run_in_virtual_time(main()) == [{1: "done"}, {1: "done", 2: "done"}]


def test_failure_skips_dependants_and_names_the_root() -> None:
    observations = observed(
        Call(1, "wait", ("a", 9.0)),
        Call(2, "fail", ("luck",)),
        Call(3, "wait", (Reference(2),)),
        Call(4, "wait", ([Reference(1), {"deep": Reference(3)}],)),
        Call(5, "wait", (Reference(1),)),
    )
    assert statuses(observations) == {1: "done", 2: "failed", 3: "skipped", 4: "skipped", 5: "done"}
    assert observations[2].error == "ValueError: no luck"
    assert observations[3].error == observations[4].error == "needs $2, which failed: ValueError: no luck"
    assert (observations[4].ended, observations[4].began, observations[4].attempts) == (1.0, None, 0)


def test_call_added_after_a_failed_input_is_skipped() -> None:
    async def main() -> Mapping[int, Observation]:
        async with scheduler_of() as scheduler:
            scheduler.add(Call(1, "fail", ("it",)))
            scheduler.add(Call(2, "wait", ("b", 50.0)))
            await asyncio.sleep(5)
            scheduler.add(Call(3, "wait", ([Reference(2), Reference(1)],)))
            assert scheduler.observations[3].ended == 5
            return await scheduler.wait()

    assert statuses(run_in_virtual_time(main())) == {1: "failed", 2: "done", 3: "skipped"}


def test_long_chains_are_skipped_without_recursion() -> None:
    size = 5000
    calls = [Call(1, "fail"), *(Call(number, "wait", (Reference(number - 1),)) for number in range(2, size + 1))]
    observations = observed(*calls, max_calls=size)
    assert {each.error for each in list(observations.values())[1:]} == {"needs $1, which failed: ValueError: no None"}


def test_hanging_tools_end_at_their_or_the_runs_timeout() -> None:
    own = Tool("own", "", PARAMETERS, hang, timeout=2.0)
    observations = observed(Call(1, "hang"), Call(2, "own"), Call(3, "wait", (Reference(1),)), known=tools(own=own))
    assert (observations[1].ended, observations[1].error) == (60.0, "no result within 60 s")
    assert (observations[2].ended, observations[2].error) == (2.0, "no result within 2 s")
    assert observations[3].error == "needs $1, which failed: no result within 60 s"


@pytest.mark.parametrize(("ignored", "ended"), [(1, 4 + GRACE), (2, 4 + 2 * GRACE)])
def test_tool_ignoring_cancellation_blocks_nothing(
    ignored: int, ended: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def stubborn(value: int) -> None:
        for _ in range(value):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e9)
        await asyncio.sleep(1e9)

    async def main() -> Mapping[int, Observation]:
        async with scheduler_of(tools(stubborn=stubborn), parallel=1, tool_timeout=3) as scheduler:
            scheduler.add(Call(1, "stubborn", (ignored,)))
            scheduler.add(Call(2, "wait"))
            observations = await scheduler.wait()
        assert asyncio.get_running_loop().time() == ended
        await asyncio.sleep(0)
        assert left_over()[0] == set()
        return observations

    observations = run_in_virtual_time(main())
    assert statuses(observations) == {1: "failed", 2: "done"}
    assert observations[2].began == 3
    assert ("tool stubborn ignores that it was cancelled" in caplog.text) == (ignored == 2)


def test_only_tools_with_attempts_are_retried_with_growing_backoff() -> None:
    events: list[AnyEvent] = []
    again = Tool("again", "", PARAMETERS, fail, attempts=5)
    observations = observed(Call(1, "again"), Call(2, "fail"), known=tools(again=again), observer=events.append)
    assert [observations[number].attempts for number in (1, 2)] == [5, 1]
    started = [each for each in events if isinstance(each, TaskStarted) and each.number == 1]
    assert [each.attempt for each in started] == [1, 2, 3, 4, 5]
    assert observations[1].began == 0
    pauses = [after.seconds - before.seconds - 1 for before, after in itertools.pairwise(started)]
    for number, pause in enumerate(pauses):
        longest = FIRST_BACKOFF * 2**number
        assert longest / 2 <= pause + 1e-9 and pause - 1e-9 <= longest
    assert len(set(pauses)) == 4


def test_backoff_is_random_and_bounded() -> None:
    random.seed(0)
    assert len({backoff(1) for _ in range(10)}) == 10
    assert all(LONGEST_BACKOFF / 2 <= backoff(attempts) <= LONGEST_BACKOFF for attempts in (6, 100, 10_000))


def test_timeout_is_a_failed_attempt() -> None:
    calls: list[float] = []

    async def slow_first(value: Any = None) -> str:
        calls.append(asyncio.get_running_loop().time())
        await asyncio.sleep(10 if len(calls) == 1 else 1)
        return "second"

    again = Tool("again", "", PARAMETERS, slow_first, attempts=3, timeout=4.0)
    observations = observed(Call(1, "again"), known=tools(again=again))
    assert (observations[1].value, observations[1].attempts) == ("second", 2)
    assert 4 + FIRST_BACKOFF / 2 <= calls[1] <= 4 + FIRST_BACKOFF


def test_backoff_occupies_no_slot() -> None:
    again = Tool("again", "", PARAMETERS, fail, attempts=2, limit=1)
    calls = [Call(1, "again", (1, 0.0)), Call(2, "again", (2, 0.0)), Call(3, "wait", (3, 0.1))]
    observations = observed(*calls, known=tools(again=again), parallel=1)
    assert [observations[number].began for number in (1, 2, 3)] == [0, 0, 0]


def test_waiting_for_a_busy_tool_occupies_no_other_slot() -> None:
    narrow = Tool("narrow", "", PARAMETERS, wait, limit=1)
    calls = [*(Call(number, "narrow") for number in (1, 2, 3)), *(Call(number, "wait") for number in (4, 5))]
    observations = observed(*calls, known=tools(narrow=narrow), parallel=2)
    assert [observations[number].began for number in (1, 2, 3, 4, 5)] == [0, 1, 2, 0, 1]


def test_ready_calls_start_in_order() -> None:
    calls = [
        Call(1, "wait", (1, 0.5)),
        Call(2, "wait", (Reference(1), 0.25)),  # ready after 3 and 4
        Call(3, "wait", (3, 0.25)),
        Call(4, "wait", (4, 0.25)),
    ]
    observations = observed(*calls, parallel=1)
    assert [observations[number].began for number in (1, 3, 4, 2)] == [0, 0.5, 0.75, 1.0]


def left_over() -> tuple[set[Any], list[asyncio.TimerHandle]]:
    """Tasks but this one, and timers that will still fire."""
    loop: Any = asyncio.get_running_loop()
    timers = [each for each in loop._scheduled if not each.cancelled()]
    return asyncio.all_tasks() - {asyncio.current_task()}, timers


def test_cancelled_run_leaves_no_task_and_no_timer() -> None:
    cleaned: list[Any] = []

    async def cleaning(value: Any = None) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(0.5)
            cleaned.append(value)

    events: list[AnyEvent] = []

    async def run() -> None:
        async with scheduler_of(tools(cleaning=cleaning), events.append, parallel=3) as scheduler:
            for number in range(1, 6):
                scheduler.add(Call(number, "cleaning", (number,)))
            scheduler.add(Call(6, "wait", (Reference(1),)))
            await scheduler.wait()

    async def main() -> None:
        running = asyncio.create_task(run())
        await asyncio.sleep(3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert left_over() == (set(), [])

    run_in_virtual_time(main())
    assert sorted(cleaned) == [1, 2, 3]
    assert not any(isinstance(each, TaskEnded) for each in events)


def test_run_cancelled_during_backoff_makes_no_more_calls() -> None:
    events: list[AnyEvent] = []
    again = Tool("again", "", PARAMETERS, fail, attempts=5)

    async def run() -> None:
        async with scheduler_of(tools(again=again), events.append) as scheduler:
            scheduler.add(Call(1, "again"))
            await scheduler.wait()

    async def main() -> None:
        running = asyncio.create_task(run())
        await asyncio.sleep(1 + FIRST_BACKOFF / 4)
        assert len(left_over()[1]) == 1  # the retry's
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert left_over() == (set(), [])
        await asyncio.sleep(100)

    run_in_virtual_time(main())
    assert [type(each) for each in events] == [TaskPlanned, TaskStarted]


def test_leaving_with_an_error_cancels_running_calls() -> None:
    async def main() -> None:
        with pytest.raises(PlanError, match="unreadable"):
            async with scheduler_of() as scheduler:
                scheduler.add(Call(1, "wait", (1, 50.0)))
                await asyncio.sleep(1)
                raise PlanError("unreadable")
        assert left_over() == (set(), [])
        assert scheduler.observations == {}
        with pytest.raises(RuntimeError, match="left"):
            scheduler.add(Call(2, "wait"))

    run_in_virtual_time(main())


def test_waiters_return_when_the_context_is_left() -> None:
    async def main() -> None:
        async with scheduler_of() as scheduler:
            scheduler.add(Call(1, "hang"))
            waiting = asyncio.create_task(scheduler.wait())
            await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="left"):
            await waiting

    run_in_virtual_time(main())


def test_observer_gets_each_tasks_events_in_order() -> None:
    events: list[AnyEvent] = []
    observed(
        Call(1, "wait", ("a",), thought="First."),
        Call(2, "fail", (Template(("not ", Reference(1))),), {"seconds": 2.0}),
        Call(3, "wait", (Reference(2),)),
        observer=events.append,
    )
    failed = "ValueError: no not a"
    assert events == [
        TaskPlanned(seconds=0, number=1, tool="wait", text='1. wait("a")', needs=[], thought="First."),
        TaskStarted(seconds=0, number=1, attempt=1, arguments={"value": "a"}),
        TaskPlanned(seconds=0, number=2, tool="fail", text='2. fail("not $1", seconds=2.0)', needs=[1]),
        TaskPlanned(seconds=0, number=3, tool="wait", text="3. wait($2)", needs=[2]),
        TaskEnded(seconds=1, number=1, status="done", result="a"),
        TaskStarted(seconds=1, number=2, attempt=1, arguments={"value": "not a", "seconds": 2.0}),
        TaskEnded(seconds=3, number=2, status="failed", result=failed),
        TaskEnded(seconds=3, number=3, status="skipped", result=f"needs $2, which failed: {failed}"),
    ]


@pytest.mark.parametrize("error", [ValueError("full"), asyncio.CancelledError()])
def test_raising_observer_stops_nothing(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    def observer(event: AnyEvent) -> None:
        raise error

    with caplog.at_level(logging.WARNING):
        observations = observed(Call(1, "wait"), Call(2, "fail"), Call(3, "wait", (Reference(2),)), observer=observer)
    assert statuses(observations) == {1: "done", 2: "failed", 3: "skipped"}
    assert f"the observer of a run raised {type(error).__name__}" in caplog.text


def test_invalid_arguments_fail_the_call() -> None:
    observations = observed(Call(1, "wait", (1, 2, 3)), Call(2, "wait", (Reference(1),)), Call(3, "wait"), parallel=1)
    assert statuses(observations) == {1: "failed", 2: "skipped", 3: "done"}
    assert (observations[1].began, observations[1].attempts, observations[1].arguments) == (None, 0, {})


def test_results_of_earlier_plans_are_inputs() -> None:
    earlier = {
        1: Observation(1, "wait", {}, "done", "old"),
        2: Observation(2, "fail", {}, "failed", error="it broke"),
    }
    calls = [Call(3, "wait", (Reference(1),)), Call(4, "wait", (Reference(2),))]
    observations = observed(*calls, earlier=earlier)
    assert observations[3].value == "old"
    assert observations[4].error == "needs $2, which failed: it broke"
    assert observations.keys() == {3, 4}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Call(1, "wait"), "call 1: the number is taken"),
        (Call(2, "wait"), "call 2: the number is taken"),
        (Call(4, "wait", (Reference(4),)), r"call 4: \$4 is not a call before it"),
        (Call(4, "wait", ([Reference(9)],)), r"call 4: \$9 is not a call before it"),
        (Call(4, "wate"), "call 4: no tool 'wate'. Expected one of: wait, fail, hang."),
    ],
)
def test_invalid_calls_are_rejected_without_effect(call: Call, message: str) -> None:
    async def main() -> None:
        async with scheduler_of(earlier={1: Observation(1, "wait", {}, "done")}) as scheduler:
            scheduler.add(Call(2, "wait"))
            with pytest.raises(PlanError, match=message):
                scheduler.add(call)
            assert statuses(await scheduler.wait()) == {2: "done"}

    run_in_virtual_time(main())


def test_calls_beyond_the_runs_limit_are_rejected() -> None:
    async def main() -> None:
        async with scheduler_of(earlier={1: Observation(1, "wait", {}, "done")}, max_calls=3) as scheduler:
            scheduler.add(Call(2, "wait"))
            await scheduler.wait()
            scheduler.add(Call(3, "wait"))
            with pytest.raises(IntaglioError, match=r"call 4: more than 3 calls\. Plan fewer\."):
                scheduler.add(Call(4, "wait"))
            assert statuses(await scheduler.wait()) == {2: "done", 3: "done"}

    run_in_virtual_time(main())


def test_call_without_text_form_is_not_added() -> None:
    async def main() -> None:
        async with scheduler_of(observer=lambda event: None) as scheduler:
            with pytest.raises(TypeError, match="not JSON serializable"):
                scheduler.add(Call(1, "wait", (object(),)))
            assert await scheduler.wait() == {}

    run_in_virtual_time(main())
