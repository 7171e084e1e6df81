"""The options that the trainings of language models share."""

from __future__ import annotations

import math

from intaglio.errors import UsageError

DTYPES = ("float32", "float16")  # of weights that are written


def check_choices(given: dict[str, tuple[str, tuple[str, ...]]]) -> None:
    """Raise `UsageError` for a value that is none of its choices; `given` are both by the option's name."""
    for name, (value, choices) in given.items():
        if value not in choices:
            raise UsageError(f"{name} {value!r}: expected one of {', '.join(choices)}.")


def check_numbers(counts: dict[str, int], learning_rate: float, seed: int) -> None:
    """Raise `UsageError` for numbers out of range; `counts` are those of at least 1, by their names."""
    for name, value in counts.items():
        least = 2 if name == "max tokens" else 1
        if value < least:
            raise UsageError(f"{name} {value}: expected at least {least}.")
    if seed < 0:
        raise UsageError(f"seed {seed}: expected at least 0.")
    if not 0 < learning_rate < math.inf:
        raise UsageError(f"learning rate {learning_rate}: expected a positive number, such as 1e-4.")
