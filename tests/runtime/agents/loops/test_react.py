"""ReAct with a scripted model: turns, invalid calls, answers, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from agent_checks import QUESTION, Events, answered, statuses, tool_of, tools
from event_loops import run_in_virtual_time
from scripted_model import SILENCE, Answer, ScriptedModel, cut

from intaglio.errors import UsageError
from intaglio.runtime.agents.loops.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.loops.react import ReAct
from intaglio.runtime.agents.models.model import ModelError
from intaglio.runtime.agents.run.events import Ended, ModelBegan, ModelEnded, TaskEnded, TaskPlanned, TaskStarted

TURNS = ['Thought: first\n1. search("Asia")', '2. search("Africa")', '3. echo("$1, $2")', "Thought: so\nAnswer: 14"]
Ran = tuple[AgentResult, ScriptedModel, Events]


def ran(*answers: Answer, model: Mapping[str, Any] | None = None, **options: Any) -> Ran:
    """Answer the question; the options of limits are keywords."""
    limits = {name: options.pop(name) for name in list(options) if name in AgentLimits.__struct_fields__}
    scripted, events = ScriptedModel(list(answers), **(model or {})), Events()

    async def main() -> AgentResult:
        result = await answered(ReAct(scripted, tools(), AgentLimits(**limits), **options), events)
        assert scripted.open == 0
        return result

    return run_in_virtual_time(main()), scripted, events


def values(result: AgentResult) -> dict[int, Any]:
    return {number: each.value for number, each in result.observations.items() if each.status == "done"}


@pytest.mark.parametrize("size", [3, 10_000])
def test_each_call_follows_the_previous_result(size: int) -> None:
    result, model, events = ran(*(cut(turn, size, 0.01) for turn in TURNS))
    assert (result.answer, result.complete) == ("14", True)
    assert values(result) == {1: "found Asia", 2: "found Africa", 3: "found Asia, found Africa"}
    starts, ends = ([each.seconds for each in events.of(kind)] for kind in (TaskStarted, TaskEnded))
    assert starts[1] > ends[0] and starts[2] > ends[1]
    assert [each.role for each in events.of(ModelBegan)] == ["agent"] * 4
    assert [each.thought for each in events.of(TaskPlanned)] == ["first", None, None]
    last = model.requests[3].messages
    assert [each.content for each in last[2:]] == [
        *(TURNS[0], "$1 = found Asia", TURNS[1], "$2 = found Africa", TURNS[2], "$3 = found Asia, found Africa")
    ]
    assert list(model.requests[2].messages) == list(last[:6])  # one conversation
    assert result.usage.calls == 4


def test_prompt_has_rules_tools_and_question() -> None:
    _, model, _ = ran("Answer: 1")
    assert "one at a time" in model.asked(1) and "- search(text: string): The tool search." in model.asked(1)
    assert model.asked(1).endswith(f"Question: {QUESTION}")


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ("", "the plan has no call"),
        ("It is Paris.", "got 'It is Paris.'"),
        ("1. search('a", "line 1: call 1, search: the plan ends before the closing '"),
        ("1. nope()", "no tool is named 'nope'"),
        ("1. search()", "text missing"),
        ("1. search($1)", "$1"),
        ("1. join()", "it has no call"),
        ("Answer:", "got 'Answer:'"),
        ("Replan: more", "got 'Replan: more'"),
        ("Thought: hm", "the plan has no call"),
    ],
)
def test_invalid_turn_is_reported_to_the_model(turn: str, told: str) -> None:
    result, model, _ = ran(turn, "1. search('a')", "1. search('b')", "2. search('c')", "Answer: ok")
    messages = model.requests[1].messages
    assert messages[-2].content == turn
    message = str(messages[-1].content)
    assert message.startswith("This is not valid: ") and told in message
    assert message.endswith('. Write call 1, or a line that begins with "Answer: ".')
    assert "number 1 is taken" in model.asked(4)
    assert "number 1 is taken" in model.asked(
        4
    ) and 'Write call 2, or a line that begins with "Answer: ".' in message.replace("call 1", "call 2")
    assert values(result) == {1: "found a", 2: "found c"}
    assert (result.answer, result.complete) == ("ok", True)


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        ("Answer: 7", "7"),
        ("Thought: a\nAnswer: 7\n1. search('x')", "7\n1. search('x')"),
        ("I think so.\nAnswer: 7", "7"),
        ("Thought: 1. search('x')\nAnswer: 7", "7"),
    ],
)
def test_answer_ends_the_run_without_a_call(turn: str, answer: str) -> None:
    for size in (1, 1000):
        result, model, _ = ran(cut(turn, size))
        assert (result.answer, result.complete, result.observations) == (answer, True, {})
        assert len(model.requests) == 1


@pytest.mark.parametrize(
    "tail",
    [["\n$1 = invented\nAnswer: 3"], ["\n2. search('b')\n3. echo(1)"], ["x "] * 5000, [SILENCE], [ModelError("")]],
)
def test_text_after_a_call_is_dropped(tail: list[Any]) -> None:
    result, model, events = ran(
        ["1. search('a')", *tail], ["2. search('b')" + "".join(map(str, tail[:1]))], "Answer: 1"
    )
    assert values(result) == {1: "found a", 2: "found b"}
    assert [each.content for each in model.requests[2].messages if each.role == "assistant"] == [
        *("1. search('a')", "2. search('b')")
    ]
    assert events.one(ModelEnded, request=1).completion_tokens < 20 and result.seconds < 2.5


def test_tool_error_is_reported_to_the_model() -> None:
    result, model, _ = ran("1. fail()", "2. echo($1)", "Answer: it failed")
    assert statuses(result) == {1: "failed", 2: "skipped"}
    assert "$1 = error: fail: the disk is full" in model.asked(2) or "$1 = error: the disk is full" in model.asked(2)
    assert "$2 = error: needs $1, which failed" in model.asked(3)
    assert result.complete


@pytest.mark.parametrize(
    ("answers", "limits", "reason"),
    [
        (TURNS, {"max_model_calls": 2}, "the run reached its limit of 2 requests to models"),
        (["nonsense"], {"max_model_calls": 4}, "the run reached its limit of 4 requests to models"),
        (TURNS, {"max_calls": 2}, "the run reached its limit of 2 tool calls"),
        ([cut(each, 1) for each in TURNS], {"max_tokens": 40}, "the run reached its limit of 40 tokens"),
        (
            [cut(each, 1) for each in TURNS],
            {"max_request_tokens": 20},
            "the model reached its limit of 20 tokens for one",
        ),
        ([*TURNS[:2], [SILENCE]], {"max_seconds": 4.0}, "the run reached its limit of 4 s"),
    ],
)
def test_limit_is_named_in_the_answer(answers: list[Any], limits: dict[str, Any], reason: str) -> None:
    result, _, events = ran(*answers, **limits)
    assert reason in result.answer and not result.complete
    assert events.one(Ended).answer == result.answer
    assert result.observations.keys() <= {1, 2, 3}
    if not limits.keys() & {"max_model_calls", "max_request_tokens", "max_tokens"}:
        assert values(result) == {1: "found Asia", 2: "found Africa"}


def test_truncated_answer_is_returned_with_the_limit() -> None:
    result, _, _ = ran(cut("Answer: a long story", 1), max_request_tokens=14)
    assert result.answer.startswith("a long [The answer is not complete: the model reached its limit of 14 tokens")


def test_no_call_is_requested_after_the_last_one() -> None:
    _, model, _ = ran(TURNS[0], "Answer: 1", model={"constrained": True}, max_calls=1)
    assert "search" in str(model.requests[0].grammar) and "search" not in str(model.requests[1].grammar)
    _, model, _ = ran(TURNS[0], "Answer: 1", model={"constrained": True}, constrained=False)
    assert model.requests[0].grammar is None


def test_cancelled_run_leaves_no_tasks() -> None:
    async def main() -> None:
        scripted = ScriptedModel([TURNS[0], [SILENCE]])
        for moment in (0.1, 0.5):
            task = asyncio.create_task(ReAct(scripted, tools()).run(QUESTION))
            await asyncio.sleep(moment)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == {asyncio.current_task()} and scripted.open == 0

    run_in_virtual_time(main())


def test_tool_named_like_a_plan_ending_is_rejected() -> None:
    with pytest.raises(UsageError, match="this name ends a plan"):
        ReAct(ScriptedModel([""]), {"finish": tool_of(print, "finish")})
