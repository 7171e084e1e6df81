"""The prompts of Tree of Thoughts' language model, and its trained output: proposals and values.

The proposer writes one state a line, those that can lead to 24 first. The evaluator tries each state, as the prompts of
Yao et al. (2023) do, and writes a label after its trials:

    6 8 14: 14 - 8 = 6, 6 + 6 = 12 impossible
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

from agent_models.conversation import Conversation

from agent_patterns.game_of_24 import TARGET, Numbers, applied, games, solvable, state_of, steps, text_of
from intaglio import Message

PROPOSE, EVALUATE = "Propose steps.", "Evaluate states."
PROPOSALS = 12  # of a state, at most
SURE, LIKELY, IMPOSSIBLE = LABELS = ("sure", "likely", "impossible")


def proposer_prompt(left: Numbers) -> list[Message]:
    """Return the request for the states after one with `left`."""
    return [Message("system", PROPOSE), Message("user", text_of(left))]


def evaluator_prompt(lefts: Sequence[Numbers]) -> list[Message]:
    """Return the request for the values of states with these numbers left."""
    return [Message("system", EVALUATE), Message("user", "\n".join(map(text_of, lefts)))]


def proposals(left: Numbers) -> list[str]:
    """Return the states that the proposer should write: those that can lead to 24, then others."""
    after = [(step, applied(step, left) or ()) for step in steps(left)]
    distinct = {numbers: step for step, numbers in reversed(after)}
    ordered = sorted(distinct.items(), key=lambda each: (not solvable(each[0]), after.index((each[1], each[0]))))
    return [state_of(step, numbers) for numbers, step in islice(ordered, PROPOSALS)]


def value(left: Numbers) -> str:
    """Return the label that the evaluator should write: two numbers are easily tried, three are not."""
    if not solvable(left):
        return IMPOSSIBLE
    return LIKELY if len(left) > 2 else SURE


def valuation(left: Numbers) -> str:
    """Return the line that the evaluator should write: a way to 24, or trials that miss it, and the label."""
    return f"{text_of(left)}: {trials(left)} {value(left)}".replace(":  ", ": ")


def trials(left: Numbers) -> str:
    """Return the steps for the evaluator to try: those of a way to 24; or, of two numbers, all; of three, their sum."""
    if len(left) == 1:
        return ""
    if len(left) == 2:
        tried = list(steps(left))
        last = next((place for place, step in enumerate(tried) if step.result == TARGET), len(tried) - 1)
        return ", ".join(map(str, tried[: last + 1]))
    ways = ((step, after) for step in steps(left) if solvable(after := applied(step, left) or ()))
    step, after = next(ways, (None, ()))
    if step is None:
        step = max(steps(left), key=lambda each: (each.operator == "+", each.result))
        after = applied(step, left) or ()
        return f"{step}, {next(steps(after))}" if len(after) == 2 else str(step)
    return f"{step}, {next(each for each in steps(after) if solvable(applied(each, after) or ()))}"


def thought_conversations(random: Random) -> Iterator[Conversation]:
    """Yield requests with the answers to train on, without end, of states that games to train on may come to.

    Of each game, the proposer is asked about the game and some states after it; half of those can lead to 24.
    """
    training, _ = games()
    while True:
        state = random.choice(training)
        while len(state) > 1:
            yield _proposing(state)
            after = sorted({applied(step, state) or () for step in steps(state)})
            yield _evaluating(_mixed(after, random))
            good = [each for each in after if solvable(each)]
            state = random.choice(good if good and random.random() < 0.6 else after)


def _mixed(states: Sequence[Numbers], random: Random) -> list[Numbers]:
    return random.sample(states, min(len(states), PROPOSALS))


def _proposing(left: Numbers) -> Conversation:
    return Conversation([*proposer_prompt(left), Message("assistant", "\n".join(proposals(left)))])


def _evaluating(lefts: Sequence[Numbers]) -> Conversation:
    return Conversation([*evaluator_prompt(lefts), Message("assistant", "\n".join(map(valuation, lefts)))])
