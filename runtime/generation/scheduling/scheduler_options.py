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
    """The load of a model at this moment. A model without a cache has a capacity of 0."""

    running: int = 0  # requests in rows of the batch; of an encoder, texts in the engine
    waiting: int = 0  # requests, or texts, in the queue
    cache_tokens: int = 0  # in the rows of running requests
    cache_capacity: int = 0  # tokens that all rows can hold
