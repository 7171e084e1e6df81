"""An executor that runs each task here, with one thread, and records what a cluster would have to do for it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from intaglio.executors.executor import Executor
from intaglio.executors.parcel import Keep, opened, stored
from intaglio.processes.threads import bounded

Result = TypeVar("Result")


@dataclass
class Task:
    """What one task costs: seconds of a worker, of the driver before it, and bytes there and back."""

    seconds: float
    driver: float
    sent: int
    received: int


@dataclass
class Stage:
    """The tasks of one call of `map`. `before`: seconds of the driver alone; `shared`: bytes that each worker gets."""

    function: str
    before: float
    shared: int
    tasks: list[Task] = field(default_factory=list)


class Recorder(Executor):
    """Records the stages of a job. Time in between is the driver's; that of measuring sizes is left out."""

    name = "recorder"

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.after = 0.0  # seconds of the driver after the last task
        self._shared: dict[int, tuple[Any, int]] = {}  # by id: the value, and its bytes until a task has used it
        self._since = time.perf_counter()

    def share(self, value: Any) -> Any:
        """See `Executor`."""
        start = time.perf_counter()
        self._shared = {id(value): (value, _size(value))}
        self._since += time.perf_counter() - start
        return value

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        small: bool = False,
        keep: Keep | None = None,
    ) -> Iterator[Result]:
        """See `Executor`. What is kept is sent and received, as with Ray."""
        stage = None
        for task in map(tuple, map(opened, tasks)):
            driver = time.perf_counter() - self._since
            if stage is None:
                stage = Stage(function.__name__, driver, sum(map(self._first_use, task)))
                self.stages.append(stage)
                driver = 0.0
            sent = sum(_size(each) for each in task if id(each) not in self._shared)
            start = time.perf_counter()
            with bounded(1):
                result = function(*task)
            seconds = time.perf_counter() - start
            stage.tasks.append(Task(seconds, driver, sent, _size(result)))
            self._since = time.perf_counter()
            yield stored(result, keep)

    def _first_use(self, value: Any) -> int:
        """Bytes of a shared value the first time, else 0: workers keep it."""
        if id(value) not in self._shared:
            return 0
        shared, size = self._shared[id(value)]
        self._shared[id(value)] = shared, 0
        return size

    def finish(self) -> None:
        """Note the driver's time after the last task."""
        self.after = time.perf_counter() - self._since


def _size(value: Any) -> int:
    """Bytes of a value as it is sent."""
    return len(pickle.dumps(value, protocol=5))
