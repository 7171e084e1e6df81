"""The executor protocol: run module-level functions on plain arguments, and return their results in order.

Results never depend on the executor: jobs are divided in the same way for each, and sums are added in the order of the
tasks. An executor only decides where a task runs. Tasks in this process compute the same as elsewhere inside
`intaglio.processes.threads.bounded`: BLAS rounds otherwise with more threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from intaglio import interrupts
from intaglio.executors.parcel import Keep, opened, stored
from intaglio.processes.threads import in_parallel

Result = TypeVar("Result")
Handle = TypeVar("Handle")

OPTION = "--executor"
RETRIES = 3  # of a task whose worker died
AHEAD = 2  # tasks in flight per worker, so that none waits for its next one


class Executor(ABC):
    """A context manager that runs tasks. `name` is the value of the option that opens it."""

    name: str

    @abstractmethod
    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        small: bool = False,
        keep: Keep | None = None,
    ) -> Iterator[Result]:
        """Return the results of `function(*task)` for each of `tasks`, in their order.

        `function` is defined at the top of a module, must not modify its arguments, and its arguments and results can
        be pickled. `tasks` is consumed as far as tasks are started: at most `AHEAD` per worker. `small`: a task uses a
        single thread, so that in this process several run at a time. `keep`: first items of each result that later
        tasks need, but not the caller, who gets a `Stored` one in the place of each. Raises what `function` raises,
        and `WorkerError` for a task whose workers died more than `RETRIES` times.
        """

    def share(self, value: Any) -> Any:
        """Return what to pass to many tasks instead of `value`: each worker gets it once. Functions see `value`."""
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:  # noqa: B027
        """Stop the workers; unfinished tasks are abandoned."""


class Inline(Executor):
    """Runs each task in this process when its result is requested, with all threads."""

    name = "inline"

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        small: bool = False,
        keep: Keep | None = None,
    ) -> Iterator[Result]:
        """See `Executor`."""

        def run(task: tuple[Any, ...]) -> Result:
            result: Result = stored(function(*opened(task)), keep)
            return result

        if small:
            with interrupts.deferred():
                results = in_parallel(run, tasks)
            yield from results
            return
        for task in tasks:
            with interrupts.deferred():
                result = run(task)
            yield result


INLINE = Inline()


class InOrder(Generic[Handle, Result]):
    """An iterator over the results of tasks that are started ahead, in the order of the tasks."""

    def __init__(
        self,
        tasks: Iterable[tuple[Any, ...]],
        start: Callable[[tuple[Any, ...]], Handle],
        finish: Callable[[Handle], Result],
        window: int,
    ):
        """Start `window` tasks. `start` starts one and returns a handle, `finish` waits for the result of a handle."""
        self._tasks, self._start, self._finish, self._window = iter(tasks), start, finish, window
        self._started: deque[Handle] = deque()
        self._fill()

    def _fill(self) -> None:
        while len(self._started) < self._window and (task := next(self._tasks, None)) is not None:
            self._started.append(self._start(task))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result:
        if not self._started:
            raise StopIteration
        result = self._finish(self._started.popleft())
        self._fill()
        return result
