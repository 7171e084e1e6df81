"""Conversations of the planner of the Game of 24, to train on: question, plan, results, replan, ..., answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from random import Random

from agent_models.conversation import Conversation

from agent_patterns.game_of_24 import games, numbers_of
from agent_patterns.teacher import Teacher, first_number, listed, plan, text
from agent_patterns.thought_tools import ThoughtTools
from agent_patterns.thoughts import LABELS, PROPOSE, proposals, valuation
from agent_patterns.tree_of_thoughts import game_compiler
from intaglio import Message
from intaglio.runtime import LAST_RULE

REPLAN = "Replan: none is 24."
UNSOLVED = "Answer: no solution found."


def game_conversations(random: Random) -> Iterator[Conversation]:
    """Yield whole conversations without end, recorded from `LLMCompiler` with the tools.

    The tools' model makes mistakes, so that there are states of all kinds, fewer than five of them, and no solution.
    """
    training, _ = games()
    while True:
        planner = Teacher(planned)
        tools = ThoughtTools(Teacher(Imperfect(random)))
        numbers = list(random.choice(training))
        random.shuffle(numbers)
        asyncio.run(game_compiler(planner, tools).run(" ".join(map(str, numbers))))
        yield planner.conversations[-1]


def planned(messages: Sequence[Message]) -> str:
    """Return the next output of the planner, or of the joiner."""
    last, numbers = text(messages[-1]), text(messages[1]).removeprefix("Question: ")
    if last.startswith("$"):
        states = _selected(last)
        if len(states) == 1 and "left" not in states[0]:
            return f"Answer: {states[0]}"
        return UNSOLVED if last.endswith(LAST_RULE) or not states else REPLAN
    first = first_number(messages[-1])
    states = len(_selected(text(messages[-3]))) if first > 1 else 1
    proposers, evaluators = range(first, first + states), range(first + states, first + 2 * states)
    selected = f", ${first - 1}" if first > 1 else ""
    calls = [
        *(f'thought_proposer("{numbers}"{selected and f"{selected}, {place}"})' for place in range(1, states + 1)),
        *(f'state_evaluator("{numbers}", ${number})' for number in proposers),
        f'top_k_select("{numbers}", {listed(proposers)}, {listed(evaluators)})',
    ]
    return plan(calls, first)


def _selected(results: str) -> list[str]:
    """Return the result of `top_k_select`, the last in a message with results."""
    lines = [line for line in results.splitlines() if line.startswith("$")]
    selected: list[str] = json.loads(lines[-1].partition(" = ")[2])
    return selected


class Imperfect:
    """Replies as the model of the tools should, with mistakes."""

    def __init__(self, random: Random):
        self._random = random
        self._mistakes = random.choice([0.0, 0.2, 0.5])  # part of the lines
        self._most = random.choice([2, 4, 12, 12])  # proposals

    def __call__(self, messages: Sequence[Message]) -> str:
        """Return proposals or values."""
        asked = text(messages[1])
        if text(messages[0]) == PROPOSE:
            written = proposals(numbers_of(asked))[: self._most]
            if self._random.random() < self._mistakes:
                self._random.shuffle(written)
            return "\n".join(written)
        return "\n".join(self._valued(line) for line in asked.splitlines())

    def _valued(self, line: str) -> str:
        if self._random.random() < self._mistakes:
            return f"{line}: {self._random.choice(LABELS)}"
        return valuation(numbers_of(line))
