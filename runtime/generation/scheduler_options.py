"""The limits of a scheduler, and its load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from intaglio.errors import UsageError


@dataclass(frozen=True)
class SchedulerOptions:
    """Limits of a scheduler. Raises `UsageError` for values out of range."""

    chunk: int = 256  # prompt tokens read per pass, during which the other rows wait
    max_waiting: int = 1024  # requests without a row
    max_waiting_tokens: int = 1 << 20  # prompt tokens of all waiting requests

    def __post_init__(self) -> None:
        for name in ("chunk", "max_waiting", "max_waiting_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', ' ')} {getattr(self, name)}: expected at least 1.")


class Load(NamedTuple):
    """What a scheduler does at this moment."""

    running: int  # requests in rows
    waiting: int  # requests in the queue
    cache_tokens: int  # in the rows of running requests
    cache_capacity: int  # tokens that all rows can hold
