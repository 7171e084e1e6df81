"""The requests that have arrived, but are in no queue yet: their bodies are read, decoded and tokenized."""

from __future__ import annotations

from intaglio.serve.monitoring.logs import Access
from intaglio.serve.responses.errors import RETRY_AFTER, ApiError


class Arrivals:
    """Counts these requests, at most `most` at a time: each may hold a full body. For the event loop alone."""

    def __init__(self, most: int):
        self._most = most
        self._arriving: set[int] = set()  # ids of the requests' records

    def enter(self, record: Access) -> None:
        """Count a request. Raises `ApiError` if there are too many."""
        if len(self._arriving) >= self._most:
            message = f"{self._most} requests are arriving, the maximum. Try again later."
            raise ApiError(429, message, "rate_limit_error", code="too_many_requests", retry_after=RETRY_AFTER)
        self._arriving.add(id(record))

    def leave(self, record: Access) -> None:
        """The request is in a queue, or has ended; it may have left before."""
        self._arriving.discard(id(record))
