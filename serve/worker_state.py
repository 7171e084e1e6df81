"""What a worker reports about its load, whenever it is asked."""

from __future__ import annotations

from typing import NamedTuple


class WorkerState(NamedTuple):
    """The load of a worker at this moment. A model without a cache has a capacity of 0."""

    running: int = 0  # requests in rows of the batch; of an encoder, texts in the engine
    waiting: int = 0  # requests, or texts, in the queue
    cache_tokens: int = 0  # tokens of running requests in the caches
    cache_capacity: int = 0  # tokens that all rows can hold
