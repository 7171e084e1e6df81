"""Options shared by all training of language models."""

from __future__ import annotations

import math

from intaglio.errors import UsageError

DTYPES = ("float32", "float16")  # of written weights


def check_choices(given: dict[str, tuple[str, tuple[str, ...]]]) -> None:
    """Raise `UsageError` for an invalid choice; `given` maps an option's name to its value and the choices."""
    for name, (value, choices) in given.items():
        if value not in choices:
            raise UsageError(f"{name} {value!r}: expected one of {', '.join(choices)}.")


def check_numbers(counts: dict[str, int], learning_rate: float, seed: int) -> None:
    """Raise `UsageError` for numbers out of range; `counts` maps names to numbers that must be at least 1."""
    for name, value in counts.items():
        least = 2 if name == "max tokens" else 1
        if value < least:
            raise UsageError(f"{name} {value}: expected at least {least}.")
    if seed < 0:
        raise UsageError(f"seed {seed}: expected at least 0.")
    if not 0 < learning_rate < math.inf:
        raise UsageError(f"learning rate {learning_rate}: expected a positive number, such as 1e-4.")
