"""The queue of a scheduler: thread-safe, bounded, ordered by priority, then by arrival."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

from intaglio.errors import BusyError, UsageError
from intaglio.runtime.generation.scheduling.request_state import RequestState


class WaitingRequests:
    """The waiting and the cancelled requests of a scheduler. Methods may be called from any thread."""

    def __init__(self, most: int, most_tokens: int):
        """`most`: maximum number of waiting requests; `most_tokens`: of all their prompts together."""
        self._most, self._most_tokens = most, most_tokens
        self._changed = threading.Condition()
        self._queue: list[tuple[int, int, RequestState]] = []  # a heap of (-priority, arrival number, request)
        self._tokens = 0
        self._aborted: list[RequestState] = []  # cancelled or invalid, since the last call of `take_aborted`
        self._arrivals = 0
        self._woken = False

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue or self._aborted)

    def add(self, state: RequestState) -> None:
        """Add a request. Raises `BusyError` if the queue is full, `UsageError` for a prompt that never fits."""
        tokens = len(state.prompt.tokens)
        if tokens > self._most_tokens:
            raise UsageError(f"prompt of {tokens} tokens: the maximum is {self._most_tokens}. Shorten the prompt.")
        with self._changed:
            if len(self._queue) >= self._most:
                raise BusyError(
                    f"{len(self._queue)} requests are waiting, the maximum is {self._most}. Try again later."
                )
            if self._tokens + tokens > self._most_tokens:
                raise BusyError(
                    f"prompt of {tokens} tokens: {self._tokens} prompt tokens are waiting, the maximum is "
                    f"{self._most_tokens}. Try again later, or shorten the prompt."
                )
            self._arrivals += 1
            heapq.heappush(self._queue, (-state.request.priority, self._arrivals, state))
            self._tokens += tokens
            self._changed.notify_all()

    def abort(self, state: RequestState) -> None:
        """Abort a request: `take_aborted` returns it; a waiting one leaves the queue at once."""
        with self._changed:
            left = [entry for entry in self._queue if entry[2] is not state]
            if len(left) < len(self._queue):
                heapq.heapify(left)
                self._queue = left
                self._tokens -= len(state.prompt.tokens)
            self._aborted.append(state)
            self._changed.notify_all()

    def take_aborted(self) -> list[RequestState]:
        """Return the requests aborted since the last call: cancelled or invalid."""
        with self._changed:
            aborted, self._aborted = self._aborted, []
            return aborted

    def take(self, may_admit: Callable[[RequestState], bool]) -> RequestState | None:
        """Remove and return the first request if it `may_admit`; otherwise None, and no later one is returned."""
        with self._changed:
            if not self._queue or not may_admit(self._queue[0][2]):
                return None
            state = heapq.heappop(self._queue)[2]
            self._tokens -= len(state.prompt.tokens)
            return state

    def wait(self, timeout: float | None) -> bool:
        """Wait until a request is here, or until `wake`, at most `timeout` seconds; return whether there is one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self) or self._woken, timeout)
            self._woken = False
            return bool(self)

    def wake(self) -> None:
        """Let `wait` return: now, or when it is called next."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()
