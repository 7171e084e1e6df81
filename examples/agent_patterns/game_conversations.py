"""Conversations of the planner of the Game of 24, to train on: question, plan, results, replan, ..., answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence

from agent_patterns.game_of_24 import Numbers, numbers_of
from agent_patterns.teacher import Teacher, first_number, listed, plan, text
from agent_patterns.thought_tools import ThoughtTools
from agent_patterns.thoughts import LABELS, PROPOSE, Conversation, proposals, valuation
from agent_patterns.tree_of_thoughts import INSTRUCTIONS, game_compiler
from intaglio.runtime.agents.prompts import LAST_RULE, question_prompt
from intaglio.runtime.generation.chat import Message

REPLAN = "Replan: none is 24."
UNSOLVED = "Answer: no solution found."


def game_conversations(games: Sequence[Numbers], seed: int) -> Iterator[Conversation]:
    """Yield whole conversations without end, recorded from `LLMCompiler` with the tools.

    The tools' model makes mistakes, so that there are states of all kinds, fewer than five of them, and no solution.
    """
    generator = random.Random(seed)  # noqa: S311
    while True:
        planner = Teacher(planned)
        tools = ThoughtTools(Teacher(Imperfect(generator)))
        numbers = list(generator.choice(games))
        generator.shuffle(numbers)
        asyncio.run(game_compiler(planner, tools).run(" ".join(map(str, numbers))))
        yield planner.conversations[-1]


def game_openings(games: Sequence[Numbers], seed: int) -> Iterator[Conversation]:
    """Yield only the first turns of such conversations, without end: short ones, in which copying is soon learned."""
    generator = random.Random(seed)  # noqa: S311
    while True:
        numbers = list(generator.choice(games))
        generator.shuffle(numbers)
        question = question_prompt(" ".join(map(str, numbers)))
        asked = [Message("system", INSTRUCTIONS), Message("user", question)]
        yield [*asked, Message("assistant", planned(asked))]


def planned(messages: Sequence[Message]) -> str:
    """Return what the planner, or the joiner, should write next."""
    last, numbers = text(messages[-1]), text(messages[1]).removeprefix("Question: ")
    if last.startswith("$"):
        states = _selected(last)
        if len(states) == 1 and "left" not in states[0]:
            return f"Answer: {states[0]}"
        return UNSOLVED if last.endswith(LAST_RULE) or not states else REPLAN
    states = [""] if len(messages) == 2 else _selected(text(messages[-3]))
    return plan(_calls(numbers, states, first := first_number(messages[-1])), first)


def _calls(numbers: str, states: Sequence[str], first: int) -> list[str]:
    count = len(states)
    proposers, evaluators = range(first, first + count), range(first + count, first + 2 * count)
    return [
        *(f'thought_proposer("{numbers}", "{state}")' for state in states),
        *(f'state_evaluator("{numbers}", ${number})' for number in proposers),
        f'top_k_select("{numbers}", {listed(proposers)}, {listed(evaluators)})',
    ]


def _selected(results: str) -> list[str]:
    """Return the result of `top_k_select`, the last in a message with results."""
    lines = [line for line in results.splitlines() if line.startswith("$")]
    selected: list[str] = json.loads(lines[-1].partition(" = ")[2])
    return selected


class Imperfect:
    """Replies as the model of the tools should, with mistakes."""

    def __init__(self, generator: random.Random):
        self._generator = generator
        self._mistakes = generator.choice([0.0, 0.2, 0.5])  # part of the lines
        self._most = generator.choice([2, 4, 12, 12])  # proposals

    def __call__(self, messages: Sequence[Message]) -> str:
        """Return proposals or values."""
        asked = text(messages[1])
        if text(messages[0]) == PROPOSE:
            written = proposals(numbers_of(asked))[: self._most]
            if self._generator.random() < self._mistakes:
                self._generator.shuffle(written)
            return "\n".join(written)
        return "\n".join(self._valued(line) for line in asked.splitlines())

    def _valued(self, line: str) -> str:
        if self._generator.random() < self._mistakes:
            return f"{line}: {self._generator.choice(LABELS)}"
        return valuation(numbers_of(line))
