"""The load of a benchmark's round, and its measurements."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import msgspec

from intaglio.errors import UsageError


class Load(msgspec.Struct, frozen=True):
    """The requests of one round. Raises `UsageError` for values out of range."""

    concurrency: int = 1  # requests at a time
    prompt_tokens: int | None = None  # None: those of a file, or the default of the subject
    requests: int | None = None  # the round ends after this number of requests, or
    seconds: float | None = None  # starts no request after this number of seconds
    rate: float | None = None  # requests per second, at random intervals; None: the next when one is finished
    number: int = 0  # of the round: chooses the prompts and the arrivals

    def __post_init__(self) -> None:
        for name in ("concurrency", "prompt_tokens", "requests"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name.replace('_', ' ')} {value}: expected at least 1.")
        for name in ("seconds", "rate"):
            if (value := getattr(self, name)) is not None and not 0 < value < float("inf"):
                raise UsageError(f"{name} {value:g}: expected more than 0.")
        if self.requests is not None and self.seconds is not None:
            raise UsageError("requests and seconds are both given, expected at most one. Leave one out.")

    @property
    def first(self) -> int:
        """The number of its first prompt: rounds begin at different ones."""
        return (self.number + 1) * 17  # prime, so that short rounds do not repeat each other

    def arrivals(self, began: float) -> Iterator[tuple[int, float]]:
        """Yield the number of each request, from 0, and the time from which its latency counts.

        Times are from `time.perf_counter`; the round began at `began`. With a rate, the intervals between two
        requests are exponential (Poisson arrivals), and the caller waits until each request is due.
        """
        intervals = random.Random(self.number)  # noqa: S311  not for secrets
        due, sent = began, 0
        while self.requests is None or sent < self.requests:
            due = due + intervals.expovariate(self.rate) if self.rate else time.perf_counter()
            if self.seconds is not None and due - began >= self.seconds:
                return
            yield sent, due
            sent += 1

    def batched(self, run: Callable[[list[int]], tuple[int, int]]) -> Round:
        """Run batches of as many items as are asked for at a time; with a number of requests, that many items in all.

        `run` gets the numbers of the items, and returns the units and prompt tokens of the batch as `Timing` has them.
        """
        began = time.perf_counter()
        timings: list[Timing] = []
        sent = 0
        for _, start in self.arrivals(began):
            units, tokens = run([self.first + sent + place for place in range(self.concurrency)])
            timings.append(Timing(time.perf_counter() - start, units, tokens))
            sent += self.concurrency
            if self.requests is not None and sent >= self.requests:
                break
        return Round(time.perf_counter() - began, timings)


class Timing(msgspec.Struct, frozen=True):
    """One finished request; of an encoder, one batch of texts."""

    seconds: float
    units: int  # generated tokens, or texts
    prompt_tokens: int = 0  # mean of a batch; 0: not reported
    first: float | None = None  # seconds to the first token
    per_token: float | None = None  # seconds for each token after the first


class Round(msgspec.Struct):
    """All requests of one round."""

    seconds: float
    timings: list[Timing]
    peak_bytes: int | None = None  # resident memory so far; None: unknown
    errors: dict[str, int] = {}  # kind -> number of requests that failed so
    messages: dict[str, str] = {}  # kind -> message of the first
