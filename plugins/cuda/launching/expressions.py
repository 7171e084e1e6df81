"""Lengths that are known only when a node runs, as programs in postfix order.

They are for libraries of ours (launch_program.cpp runs them); TensorRT's plugins in Python have its own expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Step(IntEnum):
    """A step of a program: it takes its operands from the stack and puts its result there."""

    NUMBER = 0  # the number that follows
    LENGTH = 1  # of a tensor's axis: input and axis follow
    ADD = 2
    SUBTRACT = 3
    MULTIPLY = 4
    DIVIDE = 5  # rounded down
    EQUAL = 6  # 1 or 0
    LESS = 7  # 1 or 0
    REQUIRE = 8  # nothing: the length of an axis (input and axis follow) has to be the number on the stack
    REQUIRE_OR_ONE = 9  # nothing: or 1


@dataclass(frozen=True, eq=False)
class Expression:
    """A length, with the operations that launches use; see `geometry`."""

    program: tuple[int, ...]

    def __add__(self, other: Expression | int) -> Expression:
        """The sum."""
        return self._joined(other, Step.ADD)

    def __sub__(self, other: Expression | int) -> Expression:
        """The difference."""
        return self._joined(other, Step.SUBTRACT)

    def __mul__(self, other: Expression | int) -> Expression:
        """The product."""
        return self._joined(other, Step.MULTIPLY)

    def __floordiv__(self, other: Expression | int) -> Expression:
        """The quotient, rounded down."""
        return self._joined(other, Step.DIVIDE)

    def __eq__(self, other: Expression | int) -> Expression:  # type: ignore[override]
        """1 if the two are equal, else 0."""
        return self._joined(other, Step.EQUAL)

    def __lt__(self, other: Expression | int) -> Expression:
        """1 if this is less, else 0."""
        return self._joined(other, Step.LESS)

    def __bool__(self) -> bool:
        """No condition of Python's: the answer is known only when the node runs."""
        raise TypeError("the length is not known yet. Compute with it, without branches.")

    def _joined(self, other: Any, step: Step) -> Expression:
        return Expression((*self.program, *program(other), step))


def length(tensor: int, axis: int) -> Expression:
    """The length of an axis of an input of the node."""
    return Expression((Step.LENGTH, tensor, axis))


def program(value: Expression | int) -> tuple[int, ...]:
    """The program that computes `value`."""
    return value.program if isinstance(value, Expression) else (Step.NUMBER, int(value))
