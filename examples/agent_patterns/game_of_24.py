"""The rules of the Game of 24 (thesis, appendix D.7): make 24 of four numbers, each used once, with + - * and /.

A state is the last step and the numbers that are left: `8 - 2 = 6 (left: 6 8 14)`; "" is the state before any step.
All numbers are whole, 0 to `LARGEST`: a division has to leave no remainder. Games that need fractions are not solved.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

TARGET = 24
LARGEST = 200  # result of a step
CARDS = range(1, 14)
HELD_OUT = 150  # games that are not trained on
STATE = re.compile(r"(\d{1,3}) ([-+*/]) (\d{1,3}) = (\d{1,3}) \(left: (\d{1,3}(?: \d{1,3}){0,2})\)")
STEP = re.compile(r"(\d{1,3}) ([-+*/]) (\d{1,3}) = (\d{1,3})")

Numbers = tuple[int, ...]  # ascending


class Step(NamedTuple):
    """`first operator second = result`."""

    first: int
    operator: str
    second: int
    result: int

    def __str__(self) -> str:
        return f"{self.first} {self.operator} {self.second} = {self.result}"


def numbers_of(text: str) -> Numbers:
    """Read numbers with spaces between them."""
    return tuple(sorted(int(each) for each in text.split()))


def text_of(numbers: Numbers) -> str:
    """Write numbers with spaces between them."""
    return " ".join(map(str, numbers))


def left_after(state: str, numbers: Numbers) -> Numbers:
    """Return the numbers that are left in a state of the game with these numbers. Raises `ValueError` for others."""
    if not state:
        return numbers
    if (found := STATE.fullmatch(state)) is None:
        raise ValueError(f"not a state: {state!r:.80}, expected one such as '8 - 2 = 6 (left: 6 8 14)'.")
    return numbers_of(found[5])


def state_of(step: Step, left: Numbers) -> str:
    """Return the state after `step`; `left` are the numbers after it."""
    return f"{step} (left: {text_of(left)})"


def calculated(first: int, operator: str, second: int) -> int | None:
    """Return the result of a step, None if it is not a whole number from 0 to `LARGEST`."""
    if operator == "/":
        result = first // second if second and first % second == 0 else -1
    else:
        result = {"+": first + second, "-": first - second, "*": first * second}[operator]
    return result if 0 <= result <= LARGEST else None


def applied(step: Step, left: Numbers) -> Numbers | None:
    """Return the numbers left after `step`; None for a wrong result, or a number that is not there."""
    rest = list(left)
    for each in (step.first, step.second):
        if each not in rest:
            return None
        rest.remove(each)
    if calculated(step.first, step.operator, step.second) != step.result:
        return None
    return tuple(sorted([*rest, step.result]))


def checked_state(text: str, left: Numbers) -> str | None:
    """Return a proposed state as `state_of` writes it; None unless it follows from `left` by the rules."""
    if (found := STATE.fullmatch(text.strip())) is None:
        return None
    step = Step(int(found[1]), found[2], int(found[3]), int(found[4]))
    after = applied(step, left)
    return state_of(step, after) if after is not None and after == numbers_of(found[5]) else None


def is_solution(text: str, numbers: Numbers) -> bool:
    """Whether `text` has steps, with commas between them, that lead from `numbers` to 24 alone."""
    left: Numbers | None = numbers
    for part in text.split(", "):
        found = STEP.fullmatch(part)
        if found is None or left is None:
            return False
        left = applied(Step(int(found[1]), found[2], int(found[3]), int(found[4])), left)
    return left == (TARGET,)


def steps(left: Numbers) -> Iterator[Step]:
    """Yield the steps that the rules allow, the larger number first, by operator."""
    pairs = sorted(set(combinations(left, 2)))
    for operator in "+-*/":
        for small, large in pairs:
            if (result := calculated(large, operator, small)) is not None:
                yield Step(large, operator, small, result)


@cache
def solvable(left: Numbers) -> bool:
    """Whether 24 can be reached."""
    return left == (TARGET,) or any(solvable(after) for step in steps(left) if (after := applied(step, left)))


def games() -> tuple[list[Numbers], list[Numbers]]:
    """Return the games that can be solved: those to train on, and `HELD_OUT` others."""
    found = [each for each in combinations_with_replacement(CARDS, 4) if solvable(each)]
    random.Random(24).shuffle(found)  # noqa: S311
    return found[HELD_OUT:], found[:HELD_OUT]
