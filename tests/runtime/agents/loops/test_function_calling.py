"""Function calling with a scripted model: parallel calls, invalid ones, rounds, limits; and the real engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_checks import QUESTION, Events, answered, statuses, tools
from event_loops import run_in_virtual_time
from scripted_model import SILENCE, Answer, ScriptedModel, call, cut

from intaglio.errors import UsageError
from intaglio.runtime.agents.loops.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.loops.function_calling import FunctionCalling
from intaglio.runtime.agents.models.model import ModelError
from intaglio.runtime.agents.run.events import TaskEnded, TaskStarted

BOTH: list[Any] = [call("search", '{"text": "Asia"}', "a"), call("search", '{"text": "Africa"}', "b")]
Ran = tuple[AgentResult, ScriptedModel, Events]


def ran(*answers: Answer, **options: Any) -> Ran:
    """Answer the question; the options of limits are keywords."""
    limits = {name: options.pop(name) for name in list(options) if name in AgentLimits.__struct_fields__}
    scripted, events = ScriptedModel(list(answers)), Events()

    async def main() -> AgentResult:
        result = await answered(FunctionCalling(scripted, tools(), AgentLimits(**limits), **options), events)
        assert scripted.open == 0
        return result

    return run_in_virtual_time(main()), scripted, events


def results_in(model: ScriptedModel, request: int) -> dict[str | None, str | None]:
    """The results that a request has, by the calls' ids."""
    return {each.tool_call_id: each.content for each in model.requests[request - 1].messages if each.role == "tool"}


def test_calls_of_a_turn_run_in_parallel_and_return_by_id() -> None:
    result, model, events = ran(["Let me look.", *BOTH], " 14 million. ")
    assert (result.answer, result.complete) == ("14 million.", True)
    assert result.seconds == pytest.approx(0.2)
    assert len(events.of(TaskStarted)) == len(events.of(TaskEnded)) == 2
    assert results_in(model, 2) == {"a": "found Asia", "b": "found Africa"}
    asked = model.requests[1].messages[2]
    assert (asked.role, asked.content, asked.tool_calls) == ("assistant", "Let me look.", BOTH)
    assert model.requests[0].tools and model.requests[0].tool_choice == "auto"
    assert model.requests[0].messages[-1].content == QUESTION


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("search", '{"text": ', "error: search: the arguments are not JSON (Expecting value: line 1 column 10"),
        ("search", "[1]", "error: search: the arguments are a list, expected an object: [1]"),
        ("search", "null", "error: search: the arguments are a NoneType, expected an object"),
        ("search", "[" * 100_000, "error: search: the arguments are not JSON"),
        ("search", "", "error: call 1, search: text missing, expected search(text)."),
        ("search", '{"text": 7}', "error: call 1, search: text is 7, expected string."),
        ("search", '{"text": "a", "size": 1}', "error: call 1, search: no parameter is named size"),
        ("nope", "{}", "error: call 1: no tool 'nope'"),
        ("fail", "{}", "the disk is full"),
    ],
)
def test_invalid_call_is_reported_to_the_model_and_others_run(name: str, arguments: str, message: str) -> None:
    result, model, _ = ran([call(name, arguments, "x"), BOTH[1]], "sorry")
    results = results_in(model, 2)
    assert message in str(results["x"]) and len(str(results["x"])) < 500
    assert results["b"] == "found Africa"
    assert (result.answer, result.complete) == ("sorry", True)
    for each in model.requests[1].messages:
        each.as_variable()  # templates take the conversation


def test_text_in_arguments_is_never_a_reference() -> None:
    result, _, _ = ran(BOTH, [call("echo", '{"value": "$1 ${2} $$"}')], "ok")
    assert result.observations[3].value == "$1 ${2} $$"


def test_one_round_allows_calls_once() -> None:
    result, model, _ = ran(BOTH, "14", rounds=1)
    assert [each.tool_choice for each in model.requests] == ["auto", "none"]
    assert result.answer == "14"
    result, model, _ = ran("14", rounds=0)
    assert model.requests[0].tool_choice == "none" and result.answer == "14"


def test_calls_after_the_last_round_are_not_run() -> None:
    result, _, _ = ran(BOTH, BOTH, rounds=1)
    assert result.answer == (
        "No answer: the run reached its limit of 1 rounds of tool calls. 2 of 2 tool calls have a result."
    )
    result, _, _ = ran(BOTH, ["14", *BOTH], rounds=1)
    assert (result.answer, result.complete, len(result.observations)) == ("14", True, 2)
    with pytest.raises(UsageError, match="rounds -1: expected 0 or more"):
        ran("", rounds=-1)


@pytest.mark.parametrize(
    ("answers", "limits", "reason"),
    [
        ([BOTH], {"max_model_calls": 3}, "the run reached its limit of 3 requests to models"),
        ([BOTH], {"max_calls": 3}, "the run reached its limit of 3 tool calls"),
        ([BOTH, cut("a long story", 1)], {"max_tokens": 8}, "the run reached its limit of 8 tokens"),
        ([BOTH, cut("a long story", 1)], {"max_request_tokens": 6}, "the model reached its limit of 6 tokens for one"),
        ([BOTH, [SILENCE]], {"max_seconds": 2.0}, "the run reached its limit of 2 s"),
        ([BOTH, ""], {}, "the model wrote nothing"),
        ([BOTH, ["4", ModelError("the server is gone.")]], {}, "4 [The answer is not complete: the server is gone.]"),
        ([BOTH, [ModelError("the server is gone.")]], {}, "No answer: the server is gone. 2 of 2"),
        ([BOTH, "<think>It is"], {}, "the model wrote reasoning alone"),
        ([BOTH, '<tool_call>{"name": "search", "arguments": {}}'], {}, "the model wrote its calls as text"),
        ([BOTH, 'Action: search("Asia")'], {}, "the model wrote its calls as text"),
    ],
)
def test_limit_or_failure_is_named_in_the_answer(answers: list[Any], limits: dict[str, Any], reason: str) -> None:
    result, _, _ = ran(*answers, **limits)
    assert reason in result.answer and not result.complete
    assert {1: "done", 2: "done"}.items() <= statuses(result).items()


@pytest.mark.parametrize("text", ["<think>a</think>\n4", "a\n</think>\n\n4", "4<|im_end|>"])
def test_reasoning_and_markers_are_removed_from_the_answer(text: str) -> None:
    result, _, _ = ran(BOTH, text)
    assert (result.answer, result.complete) == ("4", True)


def test_calls_in_text_are_requested_as_tool_calls() -> None:
    result, model, _ = ran('{"name": "search", "arguments": {"text": "Asia"}}', BOTH, "4")
    assert (result.answer, result.complete, statuses(result)) == ("4", True, {1: "done", 2: "done"})
    assert "it has a call as text" in model.asked(2)


def test_truncated_answer_is_returned_with_the_limit() -> None:
    result, _, _ = ran(cut("a long story", 1), max_request_tokens=6)
    assert result.answer.startswith("a long [The answer is not complete: ")


def test_long_results_are_truncated_only_in_the_conversation() -> None:
    result, model, _ = ran([call("echo", f'{{"value": "{"a" * 900}"}}')], "ok", max_result_characters=100)
    assert results_in(model, 2) == {"c1": f"{'a' * 100}… (800 characters more)"}
    assert result.observations[1].value == "a" * 900


def test_cancelled_run_leaves_no_tasks() -> None:
    async def main() -> None:
        scripted = ScriptedModel([BOTH, [SILENCE]])
        for moment in (0.1, 0.5):
            task = asyncio.create_task(FunctionCalling(scripted, tools()).run(QUESTION))
            await asyncio.sleep(moment)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == {asyncio.current_task()} and scripted.open == 0

    run_in_virtual_time(main())
