"""Conversations to train on, in the words of the agents: plans and joins, turns of ReAct, and function calls.

The system messages are the agents' own; the chat template keeps the first sentence of one, which says which form it is.
A further model is a file with a function that yields such conversations; `RECIPES` of examples/train_agent_models.py
lists it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Any, NamedTuple

from agent_models.conversation import Conversation

from intaglio import FunctionCall, Message, ToolCall
from intaglio.runtime import (
    FUNCTION_RULES,
    PLAN_RULES,
    TURN_RULES,
    Call,
    Observation,
    question_prompt,
    rendered,
    rendered_plan,
    replan_prompt,
    result_line,
    results_prompt,
)
from planner.questions import Question, read_facts, substituted_text, training_questions

MOST = 4000  # characters of a result: the agents' default
PARAMETERS = {"search": "query", "calculate": "expression"}  # the only one of each tool


class Round(NamedTuple):
    """A plan of `LLMCompiler`, its calls' results, and the joiner's output."""

    calls: Sequence[Call]
    values: Mapping[int, Any]  # by the number of the call
    joined: str  # "Answer: ..." or "Replan: ...", after "Thought: ..." or without


def planned(question: str, rounds: Sequence[Round], may_replan: bool = True) -> Conversation:
    """Return a conversation of `LLMCompiler`; `may_replan`: whether it might after the last round, too."""
    messages = [Message("system", PLAN_RULES), Message("user", question_prompt(question))]
    for number, (calls, values, joined) in enumerate(rounds, 1):
        asked = results_prompt(_observed(calls, values), MOST, None, may_replan or number < len(rounds))
        messages += [
            Message("assistant", rendered_plan(calls)),
            Message("user", asked),
            Message("assistant", joined),
            Message("user", replan_prompt(calls[-1].number + 1)),
        ]
    return Conversation(messages[:-1])


def in_turns(question: str, calls: Sequence[Call], values: Mapping[int, Any], answer: str) -> Conversation:
    """Return a conversation of `ReAct`."""
    messages = [Message("system", TURN_RULES), Message("user", question_prompt(question))]
    for call, observation in zip(calls, _observed(calls, values).values(), strict=True):
        messages += [Message("assistant", rendered(call)), Message("user", result_line(observation, MOST))]
    return Conversation([*messages, Message("assistant", answer)])


def with_functions(
    question: str, calls: Sequence[Call], values: Mapping[int, Any], answer: str, parameters: Mapping[str, str]
) -> Conversation:
    """Return a conversation of `FunctionCalling`: in each turn all calls whose inputs are known.

    `parameters`: the only parameter of each tool.
    """
    messages = [Message("system", FUNCTION_RULES), Message("user", question)]
    observations = _observed(calls, values)
    left, done = list(calls), set[int]()
    while left:
        ready = [call for call in left if call.references <= done]
        asked = [
            FunctionCall(call.tool, {parameters[call.tool]: substituted_text(call.arguments[0], values)})
            for call in ready
        ]
        messages.append(Message("assistant", None, tool_calls=[ToolCall(each) for each in asked]))
        messages += [Message("tool", observations[call.number].text) for call in ready]
        done.update(call.number for call in ready)
        left = [call for call in left if call not in ready]
    return Conversation([*messages, Message("assistant", answer)], list(parameters))


def _observed(calls: Sequence[Call], values: Mapping[int, Any]) -> dict[int, Observation]:
    return {call.number: Observation(call.number, call.tool, {}, "done", values[call.number]) for call in calls}


def parallel_qa(random: Random) -> Iterator[Conversation]:
    """Yield conversations about facts, in each form in turns."""
    for question in training_questions(random, frozenset(chain.from_iterable(read_facts()[1].values()))):
        text, calls, values, answer = question.text, question.calls, question.values, _final(question)
        yield planned(text, [Round(calls, values, answer)])
        yield in_turns(text, calls, values, answer)
        yield with_functions(text, calls, values, answer, PARAMETERS)


def _final(question: Question) -> str:
    thought = f"Thought: {question.thought}\n" if question.thought else ""
    return f"{thought}Answer: {question.answer}"
