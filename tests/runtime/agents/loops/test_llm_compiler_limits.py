"""LLMCompiler at its limits, with models that fail, and with streams that break off or do not end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_checks import tool_of, tools
from compiler_runs import FOUND, PLAN, ran, values
from scripted_model import SILENCE, Step, cut

from intaglio.errors import UsageError
from intaglio.runtime.agents.models.model import End, ModelError, Usage
from intaglio.runtime.agents.run.events import (
    Ended,
    ModelBegan,
    ModelEnded,
    PlanFailed,
    Replanned,
)


@pytest.mark.parametrize(
    ("answers", "limits", "reason"),
    [
        ([PLAN, "Replan: more"], {"max_replans": 0}, "the run reached its limit of 0 replans"),
        (
            [PLAN, "Replan: more", "4. join()", "Replan: more", "4. join()", "Replan: more"],
            {"max_replans": 2},
            "the run reached its limit of 2 replans",
        ),
        ([PLAN, "Replan: more"], {"max_model_calls": 1}, "the run reached its limit of 1 requests to models"),
        (
            [PLAN, "Replan: more", "4. join()"],
            {"max_model_calls": 3},
            "the run reached its limit of 3 requests to models",
        ),
        ([cut(PLAN, 1), "Answer: 1"], {"max_tokens": len(PLAN)}, f"the run reached its limit of {len(PLAN)} tokens"),
        ([PLAN, "Replan: more"], {"max_calls": 3}, "the run reached its limit of 3 tool calls"),
        ([PLAN, SILENCE], {"max_seconds": 7.0}, "the run reached its limit of 7 s"),
        ([PLAN, cut("Answer: x" * 99, 1, 1.0)], {"max_seconds": 3.0}, "the run reached its limit of 3 s"),
        (
            [PLAN, cut("Thought: so much " * 9, 1)],
            {"max_request_tokens": 9},
            "the model reached its limit of 9 tokens for",
        ),
    ],
)
def test_limit_is_named_in_the_answer(answers: list[Any], limits: dict[str, Any], reason: str) -> None:
    answers = [[each] if isinstance(each, float) else each for each in answers]
    result, _, events = ran(*answers, **limits)
    assert reason in result.answer and not result.complete
    assert values(result) == FOUND
    assert events.one(Ended).answer == result.answer
    assert len(events.of(ModelEnded)) == len(events.of(ModelBegan))


def test_truncated_answer_is_returned_with_the_limit() -> None:
    result, _, _ = ran(PLAN, cut("Thought: hm\nAnswer: it is a long story", 1), max_request_tokens=30)
    assert result.answer == (
        "it is a lo [The answer is not complete: the model reached its limit of 30 tokens for one request.]"
    )
    assert not result.complete


def test_full_context_is_not_reported_as_a_run_limit() -> None:
    ends: list[Step] = ["Answer: it is", End(Usage(250, 0, 6, 1), "length")]
    result, _, _ = ran(PLAN, ends)
    assert "the model's context has no room for more than 6 new tokens" in result.answer and not result.complete


def test_calls_of_a_truncated_plan_are_run() -> None:
    result, model, events = ran(cut(PLAN, 1), "Answer: 1", max_request_tokens=52)
    assert values(result) == {1: FOUND[1], 2: FOUND[2]}
    assert "The plan is not valid: the model reached its limit of 52 tokens" in model.asked(2)
    assert events.one(ModelEnded, request=1).error == events.one(PlanFailed).reason


def test_calls_are_run_up_to_the_limit() -> None:
    result, model, _ = ran(PLAN, "Answer: two", max_calls=2)
    assert values(result) == {1: FOUND[1], 2: FOUND[2]}
    told = str(model.requests[1].messages[-1].content)
    assert "call 3: more than 2 calls" in told and "Replan" not in told
    assert result.answer == "two"


def test_timeout_keeps_results_while_a_tool_hangs() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    result, _, _ = ran(
        "1. search('a')\n2. hang()\n3. echo($2)\n4. join()",
        "x",
        tools={**tools(), "hang": tool_of(hang)},
        max_seconds=9.0,
    )
    assert values(result) == {1: "found a"}
    assert result.answer == "No answer: the run reached its limit of 9 s. 1 of 3 tool calls have a result."


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ModelError("model server http://host/v1: gone.\nTry again."), "model server http://host/v1: gone. Try again"),
        (UsageError("prompt of 900 tokens: too long."), "prompt of 900 tokens: too long"),
        (TimeoutError(), "model 'scripted': TimeoutError"),
        (ConnectionResetError("reset\nby peer"), "model 'scripted': ConnectionResetError: reset by peer"),
        (asyncio.QueueFull(), "model 'scripted': QueueFull"),
    ],
)
@pytest.mark.parametrize("role", ["planner", "joiner"])
def test_model_error_ends_the_run_with_the_reason(failure: Exception, message: str, role: str) -> None:
    planner = [*cut(PLAN, 6, 0.3)[:18], failure] if role == "planner" else PLAN
    result, _, events = ran(planner, ["Ans", failure])
    done = "3 of 3" if role == "joiner" else "1 of 2" if isinstance(failure, UsageError) else "2 of 2"
    assert result.answer == f"No answer: {message}. {done} tool calls have a result."
    assert not result.complete and 1 in values(result)
    assert message in str(events.of(ModelEnded)[-1].error)


GONE = ModelError("the server went away.")


def test_stream_ending_before_the_first_call_is_retried() -> None:
    result, model, events = ran(["Thought: both\n1. sea", GONE], ["1. s", GONE], PLAN, "Answer: 7")
    assert (result.answer, result.complete, values(result)) == ("7", True, FOUND)
    assert model.requests[0] == model.requests[1] == model.requests[2]
    assert result.plans == (PLAN,) and events.of(PlanFailed) == []


def test_stream_ending_later_continues_from_the_started_calls() -> None:
    first, second = PLAN.split("\n2.")[0], '2. search("Africa")\n3. join()'
    result, model, events = ran([first + "\n2. sea", GONE], second, "Answer: 7")
    assert (result.answer, result.complete, len(values(result))) == ("7", True, 2)
    message = str(model.requests[1].messages[-1].content)
    assert message.startswith("$1 = found Asia\nThe plan broke off: ") and message.endswith("Plan on, from call 2.")
    assert len(events.of(PlanFailed)) == 1 and events.of(Replanned) == []


@pytest.mark.parametrize("streaming", [True, False])
def test_repeatedly_broken_streams_end_the_run(streaming: bool) -> None:
    result, model, _ = ran(["1. search('a')\n2. sea", GONE], ["3", GONE], streaming=streaming)
    assert (result.complete, len(model.requests)) == (False, 3)
    assert "the server went away" in result.answer


@pytest.mark.parametrize("broken", ["", "Thought: it is", "Answ", "Answer:"])
def test_stream_ending_before_the_answer_is_retried(broken: str) -> None:
    result, model, _ = ran(PLAN, [broken, GONE], "Answer: 7")
    assert (result.answer, result.complete, len(model.requests)) == ("7", True, 3)


def test_broken_stream_keeps_the_partial_answer() -> None:
    result, model, _ = ran(PLAN, ["Thought: so\nAnswer: It is 7, as", GONE])
    assert result.answer == "It is 7, as [The answer is not complete: the server went away.]"
    assert not result.complete and len(model.requests) == 2


def test_timeout_keeps_the_partial_answer() -> None:
    result, _, _ = ran(PLAN, ["Answer: It is 7, as", SILENCE], max_seconds=9.0)
    assert result.answer == "It is 7, as [The answer is not complete: the run reached its limit of 9 s.]"


@pytest.mark.parametrize("reading", ["planner", "joiner"])
@pytest.mark.parametrize("piece", ["word ", "x", "x" * 1000])
def test_model_ignoring_max_tokens_is_cut_off(reading: str, piece: str) -> None:
    endless = [piece] * 10_000
    result, _, events = ran(
        endless if reading == "planner" else PLAN, ["Answer: ", *endless], model={"obeys": False}, max_request_tokens=50
    )
    assert "limit of 50 tokens for one request" in result.answer and not result.complete
    assert all(each.completion_tokens <= 101 for each in events.of(ModelEnded))
