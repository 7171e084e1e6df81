"""CUDA graphs of what a TensorRT context enqueues, replayed while nothing about the context changes.

A step of a decoder is hundreds of kernels, each of which takes the processor some microseconds to start, and has the
shapes and addresses of the step before. Its graph starts them at once. A context that changes makes its graph invalid,
as TensorRT documents: so shapes or addresses that change drop it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from intaglio.runtime.engines.device_memory import DeviceMemory

AFTER = 2  # runs that were the same; the first one after a change also prepares the context for it
DISABLED = "INTAGLIO_CUDA_GRAPHS"  # set to 0: none


class GraphReplay:
    """Runs `enqueue`, which puts the same work on the stream of `memory` until `changed` is called.

    What cannot be captured is enqueued each time, as without graphs.
    """

    def __init__(self, memory: DeviceMemory, enqueue: Callable[[], bool]) -> None:
        self._memory, self._enqueue = memory, enqueue
        self._graph: Any = None
        self._runs = 0  # since the last change
        self._wanted = os.environ.get(DISABLED) != "0"

    def run(self) -> bool:
        """Put the work on the stream; False if that failed."""
        if self._graph is not None:
            self._memory.replay(self._graph)
            return True
        if self._wanted and self._runs >= AFTER:
            self._graph = self._memory.captured(self._enqueue)
            self._wanted = self._graph is not None  # else it is not tried again
            return self.run()
        self._runs += 1
        return self._enqueue()

    def changed(self) -> None:
        """Drop the graph."""
        self._runs = 0
        if self._graph is not None:
            graph, self._graph = self._graph, None
            self._memory.drop(graph)
