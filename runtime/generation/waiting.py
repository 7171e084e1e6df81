"""Requests on their way into a scheduler, from any thread: by priority, then by arrival, in bounded numbers."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

from intaglio.errors import BusyError
from intaglio.runtime.generation.request_state import RequestState


class WaitingRequests:
    """What threads ask of a scheduler between its steps. Its methods may be called from any of them."""

    def __init__(self, most: int, most_tokens: int):
        """`most` requests may wait, and `most_tokens` of all their prompts together."""
        self._most, self._most_tokens = most, most_tokens
        self._changed = threading.Condition()
        self._queue: list[tuple[int, int, RequestState]] = []  # a heap of: priority, negated; number; request
        self._tokens = 0
        self._ending: list[RequestState] = []
        self._arrivals = 0

    def __bool__(self) -> bool:
        return bool(self._queue or self._ending)

    def add(self, state: RequestState) -> None:
        """Let a request wait. Raises `BusyError` where there is no place for it; the others stay."""
        tokens = len(state.prompt.tokens)
        with self._changed:
            if len(self._queue) >= self._most:
                raise BusyError(f"{len(self._queue)} requests are waiting, at most {self._most} may. Try again later.")
            if self._tokens + tokens > self._most_tokens:
                raise BusyError(
                    f"prompt of {tokens} tokens: {self._tokens} are waiting to be read, at most {self._most_tokens} "
                    "may. Try again later, or shorten it."
                )
            self._arrivals += 1
            heapq.heappush(self._queue, (-state.request.priority, self._arrivals, state))
            self._tokens += tokens
            self._changed.notify_all()

    def end(self, state: RequestState) -> None:
        """Let a request end when `ending` is looked at, wherever it is; if it waited, it does no longer."""
        with self._changed:
            left = [entry for entry in self._queue if entry[2] is not state]
            if len(left) < len(self._queue):
                heapq.heapify(left)
                self._queue = left
                self._tokens -= len(state.prompt.tokens)
            self._ending.append(state)
            self._changed.notify_all()

    def ending(self) -> list[RequestState]:
        """Those that are to end since this was last asked: cancelled, or refused."""
        with self._changed:
            ending, self._ending = self._ending, []
            return ending

    def take(self, may_begin: Callable[[RequestState], bool]) -> RequestState | None:
        """The request whose turn it is, which waits no longer, if it `may_begin`; nobody overtakes it otherwise."""
        with self._changed:
            if not self._queue or not may_begin(self._queue[0][2]):
                return None
            state = heapq.heappop(self._queue)[2]
            self._tokens -= len(state.prompt.tokens)
            return state

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is something here, at most `timeout` seconds; return whether there is."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self), timeout)
